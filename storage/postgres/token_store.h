#pragma once

#include <string>

#include "storage/postgres/database.h"
#include "storage/token_store.h"

namespace trainyard::postgres {

class PostgresTokenStore : public TokenStore {
 public:
  explicit PostgresTokenStore(Database& database) : database_(database) {}

  absl::Status AddToken(const std::string& token_sha256, const Principal& principal) override;
  absl::StatusOr<Principal> FindToken(const std::string& token_sha256) override;
  absl::Status RemoveToken(const std::string& token_sha256) override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
