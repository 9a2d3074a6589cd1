#include "executor/data/text/documents.h"

#include "executor/data/files/utf8.h"

namespace trainyard::data {

std::vector<absl::string_view> DocumentsOf(absl::string_view text) {
  std::vector<absl::string_view> documents;
  size_t begin = 0, end = 0;  // of the document at hand, the end of its last line left out
  const auto finish = [&] {
    if (end > begin) documents.push_back(text.substr(begin, end - begin));
  };
  for (size_t line = 0; line < text.size();) {
    const size_t newline = text.find('\n', line);
    const size_t next = newline == absl::string_view::npos ? text.size() : newline + 1;
    size_t content = newline == absl::string_view::npos ? text.size() : newline;
    if (content > line && text[content - 1] == '\r') --content;
    if (content == line) {
      finish();
      begin = end = next;
    } else {
      end = content;
    }
    line = next;
  }
  finish();
  return documents;
}

void DocumentCounter::EndLine() {
  const int64_t content = line_ - (returned_ ? 1 : 0);
  if (content == 0) {
    if (document_ > 0) count_(document_);
    document_ = gap_ = 0;
  } else {
    document_ += gap_ + content;
    gap_ = returned_ ? 2 : 1;
  }
  line_ = 0;
  returned_ = false;
}

void DocumentCounter::Add(absl::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      EndLine();
      continue;
    }
    returned_ = c == '\r';
    if (bytes_ || BeginsCodePoint(c)) ++line_;
  }
}

void DocumentCounter::Finish() {
  if (line_ > 0) EndLine();
  if (document_ > 0) count_(document_);
  document_ = gap_ = 0;
}

}  // namespace trainyard::data
