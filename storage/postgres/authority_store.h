#pragma once

#include "storage/authority_store.h"
#include "storage/postgres/database.h"

namespace trainyard::postgres {

class PostgresAuthorityStore : public AuthorityStore {
 public:
  explicit PostgresAuthorityStore(Database& database) : database_(database) {}

  absl::StatusOr<std::optional<AuthorityRecord>> FindAuthority() override;
  absl::StatusOr<AuthorityRecord> AddAuthority(const AuthorityRecord& record) override;

 private:
  Database& database_;
};

}  // namespace trainyard::postgres
