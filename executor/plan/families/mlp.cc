#include "absl/strings/str_cat.h"
#include "executor/plan/families/families.h"
#include "storage/base/status.h"

namespace trainyard::plan {

absl::StatusOr<Forward> BuildMlp(const v1::Mlp& mlp, const DataFacts& facts, TensorId images,
                                 GraphBuilder& builder) {
  const int64_t rows = builder.batch();
  Forward forward;
  forward.classes = facts.classes;
  TensorId x = images;
  int64_t in = facts.height * facts.width * facts.channels;
  int layer = 0;
  for (const int32_t width : mlp.hidden()) {
    const std::string name = absl::StrCat("layers.", layer++);
    x = builder.Linear(name, x, rows, in, width, {.std = KaimingStd(in)});
    x = builder.Activate(absl::StrCat(name, ".activation"), x, KindOf(mlp.activation()));
    x = builder.Drop(absl::StrCat(name, ".dropout"), x, mlp.dropout());
    in = width;
  }
  forward.logits = builder.Linear(absl::StrCat("layers.", layer), x, rows, in, forward.classes,
                                  {.std = LecunStd(in)});
  return forward;
}

}  // namespace trainyard::plan
