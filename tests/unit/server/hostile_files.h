#pragma once

// Files that would take a reader's memory, time or life, and jobs that name them.

#include <string>

#include "tests/unit/data/files.h"
#include "trainyard/v1/resources.pb.h"

namespace trainyard {

// A job whose text is `path`, of characters.
v1::Job JobOnText(const std::string& path);

// 1 GiB of zeros that takes no room on the disk.
std::string SparseText(const data::Folder& folder);

// A job on 2 billion labels, which a gzip file of 2 MiB holds.
v1::Job JobOnTwoBillionLabels(const data::Folder& folder);

// A job whose tokenizer_file is 16 MiB of `unit` after `head`.
v1::Job JobOnTokenizerOf(const data::Folder& folder, const std::string& head,
                         const std::string& unit);

// An honest tokenizer.json of `size` tokens, with two merges for each of them.
std::string LargeTokenizer(size_t size);

}  // namespace trainyard
