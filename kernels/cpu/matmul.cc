#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/staging.h"
#include "kernels/scratch/product.h"

namespace trainyard::kernels {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

using scratch::PieceSize;
using scratch::StagedSizes;

// Whether the product is made of fp32 staged copies: where the CPU has no instructions for its
// type, and of a sum of one, for which oneDNN's bf16 takes scratch of the size of c for each
// thread.
bool Widens(const Dnnl& dnnl, const Matmul& op) { return !dnnl.Computes(op.a.dtype) || op.k == 1; }

// Of fp32 staged copies. Dense staged copies of rows that lie apart are made at once.
StagedSizes StagedSizesOf(const Matmul& op, bool widens) {
  const auto widened = [&](const Buffer& buffer) -> int64_t {
    return !widens || buffer.dtype == DType::kF32 ? 0 : sizeof(float);
  };
  return {widened(op.a), widened(op.b), widened(op.c)};
}

// [rows, cols], read from memory that holds its transpose when asked; `step` elements lie between
// the starts of two stored rows.
Desc MatrixDesc(int64_t rows, int64_t cols, dnnl::memory::data_type type, bool transposed,
                int64_t step) {
  const Dims strides = transposed ? Dims{1, step} : Dims{step, 1};
  return Desc({rows, cols}, type, strides);
}

bool PacksB(const Matmul& op, dnnl::memory::data_type type) {
  return type == dnnl::memory::data_type::f32 && scratch::PacksB(op.m, op.n, op.transpose_b);
}

// op(x), [rows, cols], stored with its transpose's rows when `transposed`.
struct Matrix {
  Matrix(const Staging& staging, const Buffer& buffer, int64_t rows, int64_t cols, bool transposed,
         int64_t step)
      : stored{transposed ? cols : rows, transposed ? rows : cols, step},
        desc(MatrixDesc(rows, cols, staging.TypeOf(buffer), transposed,
                        staging.Has(buffer, stored) ? stored.cols : step)) {}

  StoredRows stored;
  Desc desc;
};

// A product, or a piece of one: `op` with its strides, and that of b, whose rows go on beyond n.
struct Product {
  Matmul op;
  int64_t a_step, b_step, c_step;
};

// `size` of `whole` from row `row` and column `col` of c on.
Product PieceOf(const Product& whole, int64_t row, int64_t col, const PieceSize& size) {
  Product piece = whole;
  Matmul& op = piece.op;
  op.m = std::min(size.rows, op.m - row);
  op.n = std::min(size.cols, op.n - col);
  op.a = op.a.From(op.transpose_a ? row : row * piece.a_step);
  op.b = op.b.From(op.transpose_b ? col * piece.b_step : col);
  if (op.bias) op.bias = op.bias.From(col);
  op.c = op.c.From(row * piece.c_step + col);
  return piece;
}

// Rows and columns of a tile of c. One thread makes each tile, where oneDNN would cut the work by
// the number of threads. Tiles are small enough that many threads have some; their size depends on
// the shape alone.
PieceSize TileSizeOf(int64_t m, int64_t n) {
  constexpr int64_t kLeast = 64, kEnough = 16;
  PieceSize size = {std::min<int64_t>(m, 256), std::min<int64_t>(n, 1024)};
  const auto tiles = [&] {
    return ((m + size.rows - 1) / size.rows) * ((n + size.cols - 1) / size.cols);
  };
  while (tiles() < kEnough && std::max(size.rows, size.cols) > kLeast) {
    int64_t& larger = size.cols >= size.rows ? size.cols : size.rows;
    larger = std::max(kLeast, larger / 2 / kLeast * kLeast);
  }
  return size;
}

// The tile of `size` from [row, col] on, in place, with the strides of the whole matrix.
DnnlOperand TileOf(const DnnlOperand& whole, int64_t row, int64_t col, const PieceSize& size) {
  const dnnl_dim_t* const strides = whole.shape.data.format_desc.blocking.strides;
  const auto element = static_cast<int64_t>(
      dnnl::memory::data_type_size(static_cast<dnnl::memory::data_type>(whole.shape.data_type())));
  const int64_t moved = (row * strides[0] + col * strides[1]) * element;
  DnnlOperand tile = whole;
  tile.shape = Desc({size.rows, size.cols}, whole.shape.data_type(), {strides[0], strides[1]});
  if (whole.data == nullptr) {
    tile.scratch_offset += moved;
  } else {
    tile.data = static_cast<char*>(whole.data) + moved;
  }
  return tile;
}

// A piece with its staged copies and its primitives: first the calls, in order, then one call per
// tile of c. Tiles may run in any order, but those of a group share scratch and run one after the
// other.
struct PreparedPiece {
  Staging staging;
  std::vector<DnnlCall> calls;
  std::vector<std::vector<DnnlCall>> tiles;  // by group: one per thread, or per tile if fewer
};

struct Program {
  Staging shared;  // of the operand that all pieces read
  std::vector<PreparedPiece> pieces;
};

// One thread runs each group: within a parallel region oneDNN uses no threads of its own.
void RunTiles(const Dnnl& dnnl, int threads, const std::vector<std::vector<DnnlCall>>& groups,
              void* scratch) {
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (const DnnlCall& tile : groups[i]) tile.Run(scratch);
    }
  };
  if (groups.size() == 1) {
    omp_set_num_threads(1);
    run(0, 1);
    dnnl.UseThreads();
    return;
  }
  ParallelRuns(threads, static_cast<int64_t>(groups.size()), 1, run);
}

// Prepares the pieces of a product one after the other. They use the same scratch in turn, behind
// the staged copy of the operand that they share.
class Pieces {
 public:
  // `staging_in` makes the staged copies of one piece in the scratch that it is given.
  Pieces(const Dnnl& dnnl, int threads, const Matmul& op,
         std::function<Staging(ScratchLayout&)> staging_in)
      : dnnl_(dnnl),
        threads_(threads),
        staging_in_(std::move(staging_in)),
        whole_{op, op.a_row_stride(), op.transpose_b ? op.k : op.n, op.c_row_stride()},
        size_(scratch::PieceSizeOf(op.m, op.n, op.k, StagedSizesOf(op, Widens(dnnl, op)))),
        by_columns_(size_.cols < op.n),
        attributes_(UserScratch()),
        program_(std::make_shared<Program>(Program{staging_in_(shared_), {}})) {
    common_ = by_columns_ ? ReadA(whole_, program_->shared) : ReadB(whole_, program_->shared);
    if (op.scale != 1) attributes_.set_output_scales(0, {op.scale});
    if (op.accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes_.set_post_ops(sum);
    }
  }

  Kernel Prepare() && {
    for (int64_t row = 0; row < whole_.op.m; row += size_.rows) {
      for (int64_t col = 0; col < whole_.op.n; col += size_.cols) {
        Add(PieceOf(whole_, row, col, size_));
      }
    }
    // Shared only because a std::function must be copyable.
    return Kernel{
        [&dnnl = dnnl_, threads = threads_, program = std::move(program_)](Stream& stream) {
          dnnl.UseThreads();
          program->shared.Fill(stream.scratch);
          for (const PreparedPiece& piece : program->pieces) {
            piece.staging.Fill(stream.scratch);
            for (const DnnlCall& call : piece.calls) call.Run(stream.scratch);
            RunTiles(dnnl, threads, piece.tiles, stream.scratch);
            piece.staging.BringBack(stream.scratch);
          }
        },
        scratch_bytes_};
  }

 private:
  static DnnlOperand ReadA(const Product& p, Staging& staging) {
    const Matrix a(staging, p.op.a, p.op.m, p.op.k, p.op.transpose_a, p.a_step);
    return staging.Read(DNNL_ARG_SRC, a.desc, p.op.a, a.stored);
  }
  static DnnlOperand ReadB(const Product& p, Staging& staging) {
    const Matrix b(staging, p.op.b, p.op.k, p.op.n, p.op.transpose_b, p.b_step);
    return staging.Read(DNNL_ARG_WEIGHTS, b.desc, p.op.b, b.stored);
  }

  void Add(const Product& p) {
    const Matmul& op = p.op;
    ScratchLayout layout = shared_;
    Staging staging = staging_in_(layout);
    const DnnlOperand a = by_columns_ ? common_ : ReadA(p, staging);
    const DnnlOperand b = by_columns_ ? ReadB(p, staging) : common_;
    const Matrix c(staging, op.c, op.m, op.n, false, p.c_step);
    const DnnlOperand c_place = op.accumulate ? staging.Update(DNNL_ARG_DST, c.desc, op.c, c.stored)
                                              : staging.Write(DNNL_ARG_DST, c.desc, op.c, c.stored);
    DnnlOperand bias{DNNL_ARG_BIAS, Desc()};
    if (op.bias) {
      bias = {DNNL_ARG_BIAS, MatrixDesc(1, op.n, staging.TypeOf(op.bias), false, op.n),
              op.bias.data};
    }
    const bool f32 = a.shape.data_type() == dnnl::memory::data_type::f32;
    const bool tiles = f32 && (!dnnl_.AddsByShape() || OneDnnSplitsTheSum(op));
    PreparedPiece piece{.staging = std::move(staging)};
    if (tiles) {
      AddTiles(a, b, bias, c_place, op, layout, piece);
    } else {
      piece.calls = AtOnce(a, b, bias, c_place, op, layout);
    }
    scratch_bytes_ = std::max(scratch_bytes_, layout.size());
    program_->pieces.push_back(std::move(piece));
  }

  // A small result of a long sum: even oneDNN's brgemm gives each thread a part of such a sum.
  static bool OneDnnSplitsTheSum(const Matmul& op) {
    return op.m * op.n <= 128 * 128 && op.k >= 1024;
  }

  dnnl::matmul::primitive_desc DescOf(const Desc& a, const Desc& b, const Desc& bias,
                                      const Desc& c) const {
    return {bias.is_zero() ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c),
            attributes_, dnnl_.engine()};
  }

  std::vector<DnnlCall> AtOnce(const DnnlOperand& a, const DnnlOperand& b, const DnnlOperand& bias,
                               const DnnlOperand& c, const Matmul& op, ScratchLayout& layout) {
    const dnnl::memory::data_type of_b = b.shape.data_type();
    const Desc wanted =
        PacksB(op, of_b) ? Desc({op.k, op.n}, of_b, dnnl::memory::format_tag::any) : b.shape;
    const dnnl::matmul::primitive_desc pd = DescOf(a.shape, wanted, bias.shape, c.shape);
    std::vector<DnnlCall> calls;
    std::vector<DnnlOperand> operands = {a,
                                         InputFor(dnnl_, pd.weights_desc(), b, layout, calls),
                                         c,
                                         {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                                          layout.Take(pd.scratchpad_desc().get_size())}};
    if (!bias.shape.is_zero()) operands.push_back(bias);
    calls.emplace_back(dnnl::matmul(pd), dnnl_.stream(), operands);
    return calls;
  }

  // `matrix` as the tiles read it. With `rows` they read down the columns of stored rows; such rows
  // may have to be spread first (scratch::IsSpread).
  DnnlOperand Spread(const DnnlOperand& matrix, bool rows, const Matmul& op, ScratchLayout& layout,
                     PreparedPiece& piece) {
    const dnnl_dim_t* const strides = matrix.shape.data.format_desc.blocking.strides;
    const Dims dims = matrix.shape.dims();
    if (!rows || strides[1] != 1 || !scratch::IsSpread(op.m, op.n, dims[0], dims[1], strides[0])) {
      return matrix;
    }
    const Desc wanted(dims, matrix.shape.data_type(), {dims[1] + scratch::kSpreadLine, 1});
    const DnnlOperand spread = PlaceFor(wanted, matrix, layout);
    piece.calls.push_back(Reorder(dnnl_, matrix, spread, false, layout));
    return spread;
  }

  // `matrix` with rows and columns exchanged.
  static DnnlOperand Turned(DnnlOperand matrix) {
    matrix.shape = matrix.shape.permute_axes({1, 0});
    return matrix;
  }

  // A call for each tile of c. They differ in size at two of its edges only, and share primitives.
  void AddTiles(const DnnlOperand& a_given, const DnnlOperand& b_given, const DnnlOperand& bias,
                const DnnlOperand& c, const Matmul& op, ScratchLayout& layout,
                PreparedPiece& piece) {
    const DnnlOperand a = Turned(Spread(Turned(a_given), op.transpose_a, op, layout, piece));
    const DnnlOperand b = Spread(b_given, !op.transpose_b, op, layout, piece);
    const PieceSize most = TileSizeOf(op.m, op.n);
    const bool biased = !bias.shape.is_zero();
    struct Tile {
      std::vector<DnnlOperand> operands;
      std::pair<int64_t, int64_t> size;  // rows and columns
    };
    std::vector<Tile> tiles;
    std::map<std::pair<int64_t, int64_t>, dnnl::matmul::primitive_desc> prepared;  // by size
    size_t scratch = 0;
    omp_set_num_threads(1);  // for each primitive; dnnl_.UseThreads below resets it
    for (int64_t row = 0; row < op.m; row += most.rows) {
      for (int64_t col = 0; col < op.n; col += most.cols) {
        const PieceSize size = {std::min(most.rows, op.m - row), std::min(most.cols, op.n - col)};
        Tile& tile = tiles.emplace_back(
            Tile{{TileOf(a, row, 0, {size.rows, op.k}), TileOf(b, 0, col, {op.k, size.cols}),
                  TileOf(c, row, col, size)},
                 {size.rows, size.cols}});
        if (biased) tile.operands.push_back(TileOf(bias, 0, col, {1, size.cols}));
        if (prepared.count(tile.size) > 0) continue;
        const auto pd = DescOf(tile.operands[0].shape, tile.operands[1].shape,
                               biased ? tile.operands[3].shape : Desc(), tile.operands[2].shape);
        scratch = std::max(scratch, pd.scratchpad_desc().get_size());
        prepared.emplace(tile.size, pd);
      }
    }
    std::map<std::pair<int64_t, int64_t>, dnnl::matmul> primitives;
    for (const auto& [size, pd] : prepared) primitives.emplace(size, dnnl::matmul(pd));
    const size_t groups = std::min<size_t>(tiles.size(), threads_);
    for (size_t group = 0; group < groups; ++group) {
      const size_t place = layout.Take(scratch);
      std::vector<DnnlCall>& calls = piece.tiles.emplace_back();
      const size_t end = tiles.size() * (group + 1) / groups;
      for (size_t i = tiles.size() * group / groups; i < end; ++i) {
        tiles[i].operands.push_back(
            {DNNL_ARG_SCRATCHPAD, prepared.at(tiles[i].size).scratchpad_desc(), nullptr, place});
        calls.emplace_back(primitives.at(tiles[i].size), dnnl_.stream(), tiles[i].operands);
      }
    }
    dnnl_.UseThreads();
  }

  const Dnnl& dnnl_;
  const int threads_;
  const std::function<Staging(ScratchLayout&)> staging_in_;
  const Product whole_;
  const PieceSize size_;
  const bool by_columns_;
  ScratchLayout shared_;
  dnnl::primitive_attr attributes_;
  std::shared_ptr<Program> program_;
  DnnlOperand common_;  // a or b, whichever all pieces read
  size_t scratch_bytes_ = 0;
};

}  // namespace

absl::StatusOr<Kernel> CpuDevice::Bind(const Matmul& given) {
  const Matmul op = given.OnColumns();
  const DType type = op.a.dtype;
  return dnnl_.Guard<Kernel>("matmul", [&] {
    return Pieces(dnnl_, threads_, op,
                  [&](ScratchLayout& layout) {
                    const bool widens = Widens(dnnl_, op);
                    const bool packs = !widens && (type == DType::kBF16 ||
                                                   (type == DType::kF32 && dnnl_.AddsByShape()));
                    return Staging(widens, packs, vectors_, threads_, layout);
                  })
        .Prepare();
  });
}

}  // namespace trainyard::kernels
