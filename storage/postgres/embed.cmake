# Makes C++ of SQL files. Run as: cmake -DMODE=queries|migrations -DOUT=file -DFOLDER=folder -P embed.cmake
#
# queries: every "-- name: GetJob" in FOLDER/*.sql begins a query, which becomes
#   inline constexpr Query kGetJob{"GetJob", "..."};   {x} stands for the text of FOLDER/fragments/x.sql
#   and all of them are kAllQueries.
# migrations: FOLDER/NNNN_topic.sql, in order, as kMigrations[]. "-- Works with programs that know N migrations." in one
#   says which servers of before go on with the database afterwards; without it, none.

set(text "// Made by embed.cmake from ${MODE}; do not edit.\n#pragma once\n\n")
if(MODE STREQUAL "queries")
  string(APPEND text "#include \"storage/postgres/query.h\"\n\nnamespace trainyard::postgres {\n")
  file(GLOB fragments ${FOLDER}/fragments/*.sql)
  file(GLOB files ${FOLDER}/*.sql)
  list(SORT files)
  foreach(file ${files})
    file(READ ${file} content)
    foreach(fragment ${fragments})
      get_filename_component(name ${fragment} NAME_WE)
      file(READ ${fragment} body)
      string(REPLACE "{${name}}" "${body}" content "${content}")
    endforeach()
    # What stands before the first name is a comment on the file.
    string(FIND "${content}" "-- name: " at)
    string(SUBSTRING "${content}" ${at} -1 content)
    string(REGEX REPLACE "-- name: ([A-Za-z]+)\n"
           ")sql\"};\ninline constexpr Query k\\1{\"\\1\", R\"sql(" content "${content}")
    string(FIND "${content}" "inline constexpr" at)
    string(SUBSTRING "${content}" ${at} -1 content)
    string(APPEND text "\n${content})sql\"};\n")
    string(REGEX MATCHALL "inline constexpr Query k[A-Za-z]+" declared "${content}")
    list(APPEND queries ${declared})
  endforeach()
  list(JOIN queries ", " queries)
  string(REPLACE "inline constexpr Query " "&" queries "${queries}")
  string(APPEND text "\ninline constexpr const Query* kAllQueries[] = {${queries}};\n")
else()
  string(APPEND text "namespace trainyard::postgres {\n\n"
         "struct Migration {\n  int version;\n  int works_with;\n  const char* name;\n  const char* sql;\n};\n\n"
         "inline constexpr Migration kMigrations[] = {\n")
  file(GLOB files ${FOLDER}/*.sql)
  list(SORT files)
  foreach(file ${files})
    get_filename_component(name ${file} NAME_WE)
    string(REGEX REPLACE "^0*([0-9]+)_.*" "\\1" version ${name})
    file(READ ${file} content)
    set(works_with ${version})
    if(content MATCHES "-- Works with programs that know ([0-9]+) migrations\\.")
      set(works_with ${CMAKE_MATCH_1})
    elseif(content MATCHES "-- Works with")
      message(FATAL_ERROR "${file}: expected '-- Works with programs that know N migrations.'")
    endif()
    string(APPEND text "    {${version}, ${works_with}, \"${name}\", R\"sql(${content})sql\"},\n")
  endforeach()
  string(APPEND text "};\n")
endif()
string(APPEND text "\n}  // namespace trainyard::postgres\n")
file(WRITE ${OUT} "${text}")
