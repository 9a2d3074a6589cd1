#include "executor/data/tokenizer/unicode_classes.h"

namespace trainyard::data {

namespace {

#include "executor/data/tokenizer/unicode_ranges.inc"

// PropList.txt, White_Space.
constexpr char32_t kSpaces[][2] = {
    {0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
    {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};

// at(): a range past the end of the table does not compile.
constexpr auto MakeClasses() {
  std::array<CharClass, kCharClasses.size()> classes{};
  const auto mark = [&](const auto& ranges, CharClass kind) {
    for (const auto& range : ranges) {
      for (char32_t c = range[0]; c <= range[1]; ++c) classes.at(c) = kind;
    }
  };
  mark(kLetters, CharClass::kLetter);
  mark(kNumbers, CharClass::kNumber);
  mark(kSpaces, CharClass::kSpace);
  return classes;
}

}  // namespace

constexpr std::array<CharClass, 0x32400> kCharClasses = MakeClasses();

}  // namespace trainyard::data
