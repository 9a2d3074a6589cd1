#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/pieces.h"
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

// Likewise panels, which are all columns of some rows: by AMX oneDNN makes what lies densely alone.
// Each panel copies all of b, so that few of many rows are as fast as one product, while more and
// smaller ones would let more threads help.
PieceSize PanelSizeOf(int64_t m, int64_t n) {
  constexpr int64_t kTileRows = 16;  // of AMX
  const int64_t half = ((m + 1) / 2 + kTileRows - 1) / kTileRows * kTileRows;
  return {m < 256 ? half : m <= 512 ? 128 : 256, n};
}

// The tile of `size` from [row, col] on, in place, with the strides of the whole matrix.
DnnlOperand TileOf(const DnnlOperand& whole, int64_t row, int64_t col, const PieceSize& size) {
  const dnnl_dim_t* const strides = whole.shape.data.format_desc.blocking.strides;
  return PartOf(whole, row * strides[0] + col * strides[1],
                Desc({size.rows, size.cols}, whole.shape.data_type(), {strides[0], strides[1]}));
}

// A piece with its staged copies and its primitives: first the calls, in order, then the tiles of
// c.
struct PreparedPiece {
  Staging staging, sum;  // sum: of c, where it is in 16 bits and goes by slabs
  std::vector<DnnlCall> calls;
  SharedPieces tiles;
};

struct Program {
  Staging shared;  // of the operand that all pieces read
  std::vector<PreparedPiece> pieces;
};

// Prepares the pieces of a product one after the other. They use the same scratch in turn, behind
// the staged copy of the operand that they share.
class Pieces {
 public:
  // `staging_in` makes the staged copies of one piece in the scratch that it is given.
  Pieces(const Dnnl& dnnl, const VectorTable& vectors, int threads, const Matmul& op,
         std::function<Staging(ScratchLayout&)> staging_in)
      : dnnl_(dnnl),
        vectors_(vectors),
        threads_(threads),
        staging_in_(std::move(staging_in)),
        whole_{op, op.a_row_stride(), op.transpose_b ? op.k : op.n, op.c_row_stride()},
        size_(scratch::PieceSizeOf(op.m, op.n, op.k, StagedSizesOf(op, Widens(dnnl, op)))),
        by_columns_(size_.cols < op.n),
        attributes_(AttributesOf(op.scale, op.accumulate)),
        program_(std::make_shared<Program>(Program{staging_in_(shared_), {}})) {
    common_ = by_columns_ ? ReadA(whole_, program_->shared) : ReadB(whole_, program_->shared);
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
            piece.sum.Fill(stream.scratch);
            for (const DnnlCall& call : piece.calls) call.Run(stream.scratch);
            piece.tiles.Run(dnnl, threads, stream.scratch);
            piece.staging.BringBack(stream.scratch);
            piece.sum.BringBack(stream.scratch);
          }
        },
        scratch_bytes_};
  }

 private:
  static dnnl::primitive_attr AttributesOf(float scale, bool accumulate) {
    dnnl::primitive_attr attributes = UserScratch();
    if (scale != 1) attributes.set_output_scales(0, {scale});
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    return attributes;
  }

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
    // Slabs are added up in fp32, and rounded once.
    const Cut cut = CutOf(op, a.shape.data_type());
    const bool by_slabs = cut == Cut::kSlabs;
    Staging sum(by_slabs, false, vectors_, threads_, layout);
    Staging& of_c = by_slabs && op.c.dtype != DType::kF32 ? sum : staging;
    const Matrix c(of_c, op.c, op.m, op.n, false, p.c_step);
    const DnnlOperand c_place = op.accumulate ? of_c.Update(DNNL_ARG_DST, c.desc, op.c, c.stored)
                                              : of_c.Write(DNNL_ARG_DST, c.desc, op.c, c.stored);
    DnnlOperand bias{DNNL_ARG_BIAS, Desc()};
    if (op.bias) {
      bias = {DNNL_ARG_BIAS, MatrixDesc(1, op.n, staging.TypeOf(op.bias), false, op.n),
              op.bias.data};
    }
    PreparedPiece piece{.staging = std::move(staging), .sum = std::move(sum)};
    if (by_slabs) {
      AddSlabs(a, b, bias, c_place, op, layout, piece);
    } else if (cut == Cut::kTiles) {
      const DnnlOperand a_tiles = Turned(Spread(Turned(a), op.transpose_a, op, layout, piece));
      const DnnlOperand b_tiles = Spread(b, !op.transpose_b, op, layout, piece);
      AddTiles(a_tiles, b_tiles, bias, c_place, op, TileSizeOf(op.m, op.n), layout, piece);
    } else if (cut == Cut::kPanels) {
      AddTiles(a, b, bias, c_place, op, PanelSizeOf(op.m, op.n), layout, piece);
    } else {
      AtOnce(a, b, bias, c_place, attributes_, layout, piece);
    }
    scratch_bytes_ = std::max(scratch_bytes_, layout.size());
    program_->pieces.push_back(std::move(piece));
  }

  enum class Cut { kNone, kSlabs, kTiles, kPanels };

  // Where oneDNN would cut the work, and with it the sums, by the number of threads, it is cut
  // here: all products of fp32 but those of AVX-512's brgemm, of which it splits small results of
  // long sums; sums over the rows of a, if they are long, and with AMX others, too
  // (kernels/scratch/product.h).
  Cut CutOf(const Matmul& op, dnnl::memory::data_type type) const {
    const bool small = op.m * op.n <= 128 * 128 && op.k >= 1024;
    const bool f32 = type == dnnl::memory::data_type::f32;
    if (f32 && (small || !dnnl_.AddsByShape())) return Cut::kTiles;
    const int64_t slab = SlabOf(type);
    if (scratch::GoesBySlabs(op.k, op.transpose_a, op.transpose_b, slab)) return Cut::kSlabs;
    if (op.transpose_a) return op.k > slab ? Cut::kTiles : Cut::kNone;
    return IsByAmx(type) && !scratch::AmxAddsAtOnce(op.k) ? Cut::kPanels : Cut::kNone;
  }

  bool IsByAmx(dnnl::memory::data_type type) const {
    return type == dnnl::memory::data_type::bf16 && dnnl_.HasAmx();
  }

  // Rows of a and b in one.
  int64_t SlabOf(dnnl::memory::data_type type) const {
    return IsByAmx(type) ? scratch::kAmxSlab : scratch::kSlab;
  }

  dnnl::matmul::primitive_desc DescOf(const Desc& a, const Desc& b, const Desc& bias, const Desc& c,
                                      const dnnl::primitive_attr& attributes) const {
    return {bias.is_zero() ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c),
            attributes, dnnl_.engine()};
  }

  // The calls that make c of all of the given columns of a and rows of b.
  void AtOnce(const DnnlOperand& a, const DnnlOperand& b, const DnnlOperand& bias,
              const DnnlOperand& c, const dnnl::primitive_attr& attributes, ScratchLayout& layout,
              PreparedPiece& piece) {
    const dnnl::memory::data_type of_b = b.shape.data_type();
    const bool packs = of_b == dnnl::memory::data_type::f32 &&
                       scratch::PacksB(c.shape.dims()[0], c.shape.dims()[1], whole_.op.transpose_b);
    const Desc wanted = packs ? Desc(b.shape.dims(), of_b, dnnl::memory::format_tag::any) : b.shape;
    const dnnl::matmul::primitive_desc pd =
        DescOf(a.shape, wanted, bias.shape, c.shape, attributes);
    std::vector<DnnlOperand> operands = {a,
                                         InputFor(dnnl_, pd.weights_desc(), b, layout, piece.calls),
                                         c,
                                         {DNNL_ARG_SCRATCHPAD, pd.scratchpad_desc(), nullptr,
                                          layout.Take(pd.scratchpad_desc().get_size())}};
    if (!bias.shape.is_zero()) operands.push_back(bias);
    piece.calls.emplace_back(dnnl::matmul(pd), dnnl_.stream(), operands);
  }

  // One after the other; all but the first add to c. They use the same scratch in turn.
  void AddSlabs(const DnnlOperand& a, const DnnlOperand& b, const DnnlOperand& bias,
                const DnnlOperand& c, const Matmul& op, ScratchLayout& layout,
                PreparedPiece& piece) {
    const ScratchLayout before = layout;
    const int64_t slab = SlabOf(a.shape.data_type());
    for (int64_t from = 0; from < op.k; from += slab) {
      const int64_t depth = std::min(slab, op.k - from);
      ScratchLayout of_slab = before;
      AtOnce(TileOf(a, 0, from, {op.m, depth}), TileOf(b, from, 0, {depth, op.n}),
             from == 0 ? bias : DnnlOperand{DNNL_ARG_BIAS, Desc()}, c,
             from == 0 ? attributes_ : AttributesOf(op.scale, true), of_slab, piece);
      if (of_slab.size() > layout.size()) layout = of_slab;
    }
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

  // A call for each tile of c, of at most the size `most`. They differ in size at two edges of c
  // only, and share primitives.
  void AddTiles(const DnnlOperand& a, const DnnlOperand& b, const DnnlOperand& bias,
                const DnnlOperand& c, const Matmul& op, const PieceSize& most,
                ScratchLayout& layout, PreparedPiece& piece) {
    const bool biased = !bias.shape.is_zero();
    struct Prepared {
      dnnl::matmul primitive;
      Desc scratchpad;
    };
    std::map<std::pair<int64_t, int64_t>, Prepared> prepared;  // by rows and columns
    std::vector<Piece> tiles;
    const OneThread one(dnnl_);
    for (int64_t row = 0; row < op.m; row += most.rows) {
      for (int64_t col = 0; col < op.n; col += most.cols) {
        const PieceSize size = {std::min(most.rows, op.m - row), std::min(most.cols, op.n - col)};
        std::vector<DnnlOperand> operands = {TileOf(a, row, 0, {size.rows, op.k}),
                                             TileOf(b, 0, col, {op.k, size.cols}),
                                             TileOf(c, row, col, size)};
        if (biased) operands.push_back(TileOf(bias, 0, col, {1, size.cols}));
        const std::pair<int64_t, int64_t> key = {size.rows, size.cols};
        if (prepared.count(key) == 0) {
          const auto pd =
              DescOf(operands[0].shape, operands[1].shape, biased ? operands[3].shape : Desc(),
                     operands[2].shape, attributes_);
          prepared.emplace(key, Prepared{dnnl::matmul(pd), pd.scratchpad_desc()});
        }
        const Prepared& made = prepared.at(key);
        tiles.push_back({{made.primitive, made.scratchpad, std::move(operands)}});
      }
    }
    piece.tiles = SharedPieces(dnnl_, threads_, std::move(tiles), layout);
  }

  const Dnnl& dnnl_;
  const VectorTable& vectors_;
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
    return Pieces(dnnl_, vectors_, threads_, op,
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
