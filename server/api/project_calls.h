#pragma once

// What AccessService answers about projects. Errors begin with the field.

#include "absl/status/status.h"
#include "storage/project_store.h"
#include "trainyard/v1/access_service.pb.h"

namespace trainyard {

// kInvalidArgument: the name, or what is said of the project. `told`: what differs now, for the
// audit.
absl::Status SetProject(ProjectStore& store, const v1::SetProjectRequest& request,
                        v1::Project* response, std::string& told);

absl::Status ListProjects(ProjectStore& store, const v1::ListProjectsRequest& request,
                          v1::ListProjectsResponse* response);

}  // namespace trainyard
