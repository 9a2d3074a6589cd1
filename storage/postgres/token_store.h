#pragma once

#include "storage/postgres/database.h"
#include "storage/token_store.h"

namespace trainyard::postgres {

class PostgresTokenStore : public TokenStore {
 public:
  // `looks`: for FindEnded, which waits behind no call of users.
  PostgresTokenStore(Database& database, Database& looks) : database_(database), looks_(looks) {}

  absl::Status AddToken(const std::string& token_sha256, const Principal& principal) override;
  absl::StatusOr<TokenRecord> CreateToken(const std::string& token_sha256, const TokenRecord& token,
                                          absl::Duration valid_for) override;
  absl::StatusOr<std::vector<TokenRecord>> ListTokens(const std::string& project,
                                                      const std::string& after, int limit) override;
  absl::StatusOr<TokenRecord> RevokeToken(const std::string& project,
                                          const std::string& id) override;
  absl::StatusOr<Principal> FindToken(const std::string& token_sha256) override;
  absl::StatusOr<std::vector<std::string>> FindEnded(
      const std::vector<std::string>& token_sha256s) override;

 private:
  Database& database_;
  Database& looks_;
};

}  // namespace trainyard::postgres
