#pragma once

// A step that is not taken leaves the buffers of a model as they were.

#include <cstddef>

#include "executor/plan/graph/plan.h"

namespace trainyard::plan {

// Of one logical rank: the micro-batches of a step move copies of the buffers, in order; they
// become the buffers when the step is taken. Of several: each micro-batch notes the moments that it
// finds (Plan::moments), and plan.move_buffers moves the buffers by those of all. Returns how many
// ops now precede what plan.micro began with.
size_t MovePendingBuffers(Plan& plan);

}  // namespace trainyard::plan
