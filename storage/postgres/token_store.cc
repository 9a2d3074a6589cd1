#include "storage/postgres/token_store.h"

#include <algorithm>
#include <pqxx/pqxx>

#include "absl/strings/str_cat.h"
#include "storage/base/status.h"
#include "storage/postgres/queries.inc.h"

namespace trainyard::postgres {
namespace {

constexpr absl::Duration kEndedTokensKept = absl::Hours(24 * 30);

absl::Time TimeOrNever(const pqxx::field& field) {
  return field.is_null() ? absl::InfiniteFuture() : absl::FromUnixMicros(field.as<int64_t>());
}

TokenRecord TokenOf(const pqxx::row& row) {
  TokenRecord token{.id = row["id"].as<std::string>(),
                    .principal = {row["name"].as<std::string>(), row["role"].as<std::string>(),
                                  row["project"].as<std::string>()},
                    .creator = row["creator"].as<std::string>(),
                    .expire_time = TimeOrNever(row["expire_time"]),
                    .revoke_time = TimeOrNever(row["revoke_time"])};
  if (!row["create_time"].is_null()) token.create_time = TimeOrNever(row["create_time"]);
  return token;
}

}  // namespace

absl::Status PostgresTokenStore::AddToken(const std::string& token_sha256,
                                          const Principal& principal) {
  return database_.Run("add token", [&](Transaction& transaction) -> absl::Status {
    transaction.Run(kAddToken, Params(token_sha256, principal.name, principal.role));
    return absl::OkStatus();
  });
}

absl::StatusOr<TokenRecord> PostgresTokenStore::CreateToken(const std::string& token_sha256,
                                                            const TokenRecord& token,
                                                            absl::Duration valid_for) {
  return database_.Run(
      "create token", [&](Transaction& transaction) -> absl::StatusOr<TokenRecord> {
        transaction.Run(kForgetTokens, Params(kEndedTokensKept));
        const Principal& principal = token.principal;
        return TokenOf(
            transaction.Run(kCreateToken, Params(token_sha256, principal.name, principal.role,
                                                 principal.project, token.creator, valid_for))[0]);
      });
}

absl::StatusOr<std::vector<TokenRecord>> PostgresTokenStore::ListTokens(const std::string& project,
                                                                        const std::string& after,
                                                                        int limit) {
  using Tokens = std::vector<TokenRecord>;
  return database_.Run("list tokens", [&](Transaction& transaction) -> absl::StatusOr<Tokens> {
    Tokens tokens;
    const auto add = [&tokens](const pqxx::result& rows) {
      for (const pqxx::row& row : rows) tokens.push_back(TokenOf(row));
    };
    if (!project.empty()) {
      add(transaction.Run(kListTokensOfProject, Params(after, limit, project)));
      return tokens;
    }
    add(transaction.Run(kListTokens, Params(after, limit)));
    add(transaction.Run(kListTokenFiles, Params(after, limit)));
    std::sort(tokens.begin(), tokens.end(),
              [](const TokenRecord& a, const TokenRecord& b) { return a.id < b.id; });
    if (tokens.size() > static_cast<size_t>(limit)) tokens.resize(limit);
    return tokens;
  });
}

absl::StatusOr<TokenRecord> PostgresTokenStore::RevokeToken(const std::string& project,
                                                            const std::string& id) {
  return database_.Run(
      "revoke token", [&](Transaction& transaction) -> absl::StatusOr<TokenRecord> {
        const pqxx::result revoked = transaction.Run(kRevokeToken, Params(id, project));
        if (!revoked.empty()) return TokenOf(revoked[0]);
        if (project.empty()) {
          const pqxx::result file = transaction.Run(kRevokeTokenFile, Params(id));
          if (!file.empty()) return TokenOf(file[0]);
        }
        return absl::NotFoundError(absl::StrCat("no token ", id));
      });
}

absl::StatusOr<Principal> PostgresTokenStore::FindToken(const std::string& token_sha256) {
  return database_.Run(
      "find token",
      [&](Transaction& transaction) -> absl::StatusOr<Principal> {
        const pqxx::result rows = transaction.Run(kFindToken, Params(token_sha256));
        if (rows.empty()) return absl::NotFoundError("no such token");
        return Principal{rows[0]["name"].as<std::string>(), rows[0]["role"].as<std::string>(),
                         rows[0]["project"].as<std::string>()};
      },
      Access::kStatements);
}

absl::StatusOr<std::vector<std::string>> PostgresTokenStore::FindEnded(
    const std::vector<std::string>& token_sha256s) {
  using Found = std::vector<std::string>;
  return looks_.Run(
      "find ended tokens",
      [&](Transaction& transaction) -> absl::StatusOr<Found> {
        Found found;
        const pqxx::result rows = transaction.Run(kFindEndedTokens, Params(token_sha256s));
        for (const pqxx::row& row : rows) found.push_back(row[0].as<std::string>());
        return found;
      },
      Access::kStatements);
}

}  // namespace trainyard::postgres
