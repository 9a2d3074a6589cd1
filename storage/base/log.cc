#include "storage/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

namespace trainyard {
namespace {

// The payload with JSON's escapes, so that a line stays one valid object whatever is logged.
class EscapedPayload : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    static const char kHex[] = "0123456789abcdef";
    for (char raw : message.payload) {
      const auto c = static_cast<unsigned char>(raw);
      if (c == '"' || c == '\\') {
        out.push_back('\\');
        out.push_back(raw);
      } else if (c < 0x20) {
        const char escape[] = {'\\', 'u', '0', '0', kHex[c >> 4], kHex[c & 15]};
        out.append(escape, escape + sizeof(escape));
      } else {
        out.push_back(raw);
      }
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<EscapedPayload>();
  }
};

}  // namespace

void SetUpLog(const std::string& program) {
  auto logger = spdlog::stderr_color_mt(program);
  if (isatty(STDERR_FILENO) != 0) {
    logger->set_pattern("%H:%M:%S.%e %^%L%$ %v");
  } else {
    auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
    formatter->add_flag<EscapedPayload>('*');
    formatter->set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l","program":"%n","message":"%*"})");
    logger->set_formatter(std::move(formatter));
  }
  const char* level = std::getenv("TRAINYARD_LOG");
  logger->set_level(spdlog::level::from_str(level != nullptr ? level : "info"));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(logger);
}

}  // namespace trainyard
