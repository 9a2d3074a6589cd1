#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "server/api/convert.h"
#include "server/api/names.h"
#include "server/api/page_token.h"
#include "server/api/project_calls.h"
#include "server/api/services.h"
#include "server/api/unary_call.h"
#include "storage/base/digest.h"
#include "storage/base/field_error.h"
#include "storage/base/ids.h"
#include "storage/base/printable.h"
#include "storage/base/status.h"
#include "trainyard/v1/access_service.grpc.pb.h"

namespace trainyard {
namespace {

constexpr int kTokenBytes = 32;
constexpr absl::Duration kTokenValid = absl::Hours(24 * 90);
constexpr absl::Duration kLongestTokenValid = absl::Hours(24 * 3653);

std::string ResourceOfProject(const std::string& project) {
  return project.empty() ? "" : absl::StrCat("projects/", project);
}

v1::Caller ToProto(const Principal& principal) {
  v1::Caller caller;
  caller.set_principal(principal.name);
  caller.set_role(principal.role);
  caller.set_project(ResourceOfProject(principal.project));
  return caller;
}

v1::AccessToken ToProto(const TokenRecord& token) {
  v1::AccessToken out;
  out.set_name(absl::StrCat("tokens/", token.id));
  *out.mutable_holder() = ToProto(token.principal);
  out.set_creator(token.creator);
  if (!token.creator.empty()) SetTimestamp(token.create_time, *out.mutable_create_time());
  if (token.expire_time != absl::InfiniteFuture()) {
    SetTimestamp(token.expire_time, *out.mutable_expire_time());
  }
  if (token.revoke_time != absl::InfiniteFuture()) {
    SetTimestamp(token.revoke_time, *out.mutable_revoke_time());
  }
  return out;
}

v1::AuditEntry ToProto(const AuditEntry& entry) {
  v1::AuditEntry out;
  out.set_chain(entry.chain);
  out.set_sequence(entry.sequence);
  SetTimestamp(entry.time, *out.mutable_time());
  out.set_principal(entry.principal);
  out.set_credential(entry.credential);
  out.set_source(entry.source);
  out.set_method(entry.method);
  out.set_resource(entry.resource);
  out.set_outcome(entry.outcome);
  out.set_detail(entry.detail);
  out.set_count(entry.count);
  out.set_digest(entry.digest);
  return out;
}

// A page of the audit ends with "TIME,SEQUENCE,CHAIN" of its last entry.
absl::Status SetPlace(const std::string& cursor, AuditQuery& query) {
  if (cursor.empty()) return absl::OkStatus();
  const std::vector<std::string> parts = absl::StrSplit(cursor, absl::MaxSplits(',', 2));
  int64_t micros = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &micros) ||
      !absl::SimpleAtoi(parts[1], &query.sequence)) {
    return absl::InvalidArgumentError("page_token: damaged; begin again without one");
  }
  query.time = absl::FromUnixMicros(micros);
  query.chain = parts[2];
  return absl::OkStatus();
}

bool IsPrincipalName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "user:") && !absl::ConsumePrefix(&name, "service:")) return false;
  return !name.empty() && name.size() <= 100 && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           absl::string_view("._@-").find(c) != absl::string_view::npos;
  });
}

class AccessService final : public v1::AccessService::CallbackService {
 public:
  explicit AccessService(const ServiceDependencies& dependencies) : b_(dependencies) {}

  grpc::ServerUnaryReactor* GetCaller(grpc::CallbackServerContext* context,
                                      const v1::GetCallerRequest* request,
                                      v1::Caller* response) override {
    return RunCall(b_, Permission::kReadServer, context, request, [=](const Principal& by) {
      *response = ToProto(by);
      return absl::OkStatus();
    });
  }
  grpc::ServerUnaryReactor* CreateToken(grpc::CallbackServerContext* context,
                                        const v1::CreateTokenRequest* request,
                                        v1::AccessToken* response) override {
    return RunCall(b_, Permission::kManageTokens, context, request,
                   [=, this](const Principal& by, AuditNote& note) {
                     const absl::Status status = Create(*request, by, response);
                     note.resource = response->name();
                     note.detail = absl::StrCat(
                         "for ", request->principal(), ", role ", request->role(), " of ",
                         request->project().empty() ? "the whole yard" : request->project());
                     return status;
                   });
  }
  grpc::ServerUnaryReactor* ListTokens(grpc::CallbackServerContext* context,
                                       const v1::ListTokensRequest* request,
                                       v1::ListTokensResponse* response) override {
    return RunCall(b_, Permission::kManageTokens, context, request,
                   [=, this](const Principal& by) { return List(*request, by, response); });
  }
  grpc::ServerUnaryReactor* RevokeToken(grpc::CallbackServerContext* context,
                                        const v1::RevokeTokenRequest* request,
                                        v1::AccessToken* response) override {
    return RunCall(b_, Permission::kManageTokens, context, request,
                   [=, this](const Principal& by) -> absl::Status {
                     TY_ASSIGN_OR_RETURN(const std::string id,
                                         ParseTokenName("name", request->name()));
                     TY_ASSIGN_OR_RETURN(const TokenRecord revoked,
                                         b_.stores.tokens().RevokeToken(by.project, id));
                     spdlog::warn("{} revoked token {} of {}", by.name, id, revoked.principal.name);
                     TY_RETURN_IF_ERROR(b_.revocations.Keep({CredentialKind::kToken, id}));
                     *response = ToProto(revoked);
                     return absl::OkStatus();
                   });
  }
  grpc::ServerUnaryReactor* SetProject(grpc::CallbackServerContext* context,
                                       const v1::SetProjectRequest* request,
                                       v1::Project* response) override {
    return RunCall(b_, Permission::kManageProjects, context, request,
                   [=, this](const Principal&, AuditNote& note) -> absl::Status {
                     note.resource = request->name();
                     TY_RETURN_IF_ERROR(trainyard::SetProject(b_.stores.projects(), *request,
                                                              response, note.detail));
                     b_.stores.wakeups().Wake("queue");
                     return absl::OkStatus();
                   });
  }
  grpc::ServerUnaryReactor* ListProjects(grpc::CallbackServerContext* context,
                                         const v1::ListProjectsRequest* request,
                                         v1::ListProjectsResponse* response) override {
    return RunCall(b_, Permission::kManageProjects, context, request, [=, this](const Principal&) {
      return trainyard::ListProjects(b_.stores.projects(), *request, response);
    });
  }
  grpc::ServerUnaryReactor* ListAuditEntries(grpc::CallbackServerContext* context,
                                             const v1::ListAuditEntriesRequest* request,
                                             v1::ListAuditEntriesResponse* response) override {
    return RunCall(b_, Permission::kReadAudit, context, request,
                   [=, this](const Principal&) { return ListAudit(*request, response); });
  }

 private:
  absl::Status ListAudit(const v1::ListAuditEntriesRequest& request,
                         v1::ListAuditEntriesResponse* response) {
    TY_ASSIGN_OR_RETURN(const int page_size, CheckPageSize(request.page_size(), 100, 1000));
    if (request.by_chain() && !request.principal().empty()) {
      return FieldError("principal", absl::StrCat("'", EscapedLine(request.principal()), "'"),
                        "none together with by_chain");
    }
    const std::string question = absl::StrCat("audit\n", request.by_chain(), request.principal());
    TY_ASSIGN_OR_RETURN(const std::string cursor, ReadPageToken(question, request.page_token()));
    AuditQuery query{.by_chain = request.by_chain(), .principal = request.principal()};
    TY_RETURN_IF_ERROR(SetPlace(cursor, query));
    TY_ASSIGN_OR_RETURN(const std::vector<AuditEntry> entries,
                        b_.stores.audit().ListAudit(query, page_size));
    for (const AuditEntry& entry : entries) *response->add_entries() = ToProto(entry);
    if (static_cast<int>(entries.size()) == page_size) {
      const AuditEntry& last = entries.back();
      response->set_next_page_token(MakePageToken(
          question,
          absl::StrCat(absl::ToUnixMicros(last.time), ",", last.sequence, ",", last.chain)));
    }
    return absl::OkStatus();
  }

  absl::Status Create(const v1::CreateTokenRequest& request, const Principal& by,
                      v1::AccessToken* response) {
    TokenRecord wanted{.principal = {.name = request.principal(), .role = request.role()},
                       .creator = by.name};
    if (!IsPrincipalName(request.principal())) {
      return FieldError("principal",
                        absl::StrCat("'", EscapedLine(request.principal().substr(0, 200)), "'"),
                        "user:NAME or service:NAME, of at most 100 letters, digits and ._@-");
    }
    if (!IsRole(request.role()) || request.role() == kRoleAgent) {
      return FieldError("role", absl::StrCat("'", EscapedLine(request.role().substr(0, 200)), "'"),
                        "viewer, submitter, operator or admin");
    }
    if (!request.project().empty()) {
      TY_ASSIGN_OR_RETURN(wanted.principal.project,
                          ParseProjectName("project", request.project(), false));
    }
    if (by.project != wanted.principal.project && !by.project.empty()) {
      return absl::PermissionDeniedError(
          absl::StrCat("project: ", by.name, " makes tokens for projects/", by.project, " alone"));
    }
    const absl::Duration valid_for = request.has_valid_for()
                                         ? absl::Seconds(request.valid_for().seconds()) +
                                               absl::Nanoseconds(request.valid_for().nanos())
                                         : kTokenValid;
    if (valid_for < absl::Seconds(1) || valid_for > kLongestTokenValid) {
      return FieldError("valid_for", absl::FormatDuration(valid_for), "a second to 10 years");
    }
    const std::string token = RandomHex(kTokenBytes);
    TY_ASSIGN_OR_RETURN(const TokenRecord made,
                        b_.stores.tokens().CreateToken(Sha256Hex(token), wanted, valid_for));
    spdlog::info("{} made token {} for {} (role {}{})", by.name, made.id, made.principal.name,
                 made.principal.role,
                 made.principal.project.empty() ? "" : " of projects/" + made.principal.project);
    *response = ToProto(made);
    response->set_token(token);
    return absl::OkStatus();
  }

  absl::Status List(const v1::ListTokensRequest& request, const Principal& by,
                    v1::ListTokensResponse* response) {
    TY_ASSIGN_OR_RETURN(const int page_size, CheckPageSize(request.page_size(), 100, 1000));
    const std::string question = absl::StrCat("tokens\n", by.project);
    TY_ASSIGN_OR_RETURN(const std::string after, ReadPageToken(question, request.page_token()));
    TY_ASSIGN_OR_RETURN(const std::vector<TokenRecord> tokens,
                        b_.stores.tokens().ListTokens(by.project, after, page_size));
    for (const TokenRecord& token : tokens) *response->add_tokens() = ToProto(token);
    if (static_cast<int>(tokens.size()) == page_size) {
      response->set_next_page_token(MakePageToken(question, tokens.back().id));
    }
    return absl::OkStatus();
  }

  const ServiceDependencies b_;
};

}  // namespace

std::shared_ptr<grpc::Service> MakeAccessService(const ServiceDependencies& dependencies) {
  return std::make_shared<AccessService>(dependencies);
}

}  // namespace trainyard
