#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "worker/data/data_set.h"
#include "worker/data/file.h"
#include "worker/data/normalizer.h"
#include "worker/data/segmenter.h"
#include "worker/data/tokenizer_model.pb.h"

namespace phalanx::data {
namespace {

using tokenizer_model::Model;
using tokenizer_model::Trainer;

PieceType TypeOf(tokenizer_model::Piece::Type type) {
  switch (type) {
    case tokenizer_model::Piece::NORMAL:
      return PieceType::kNormal;
    case tokenizer_model::Piece::UNKNOWN:
      return PieceType::kUnknown;
    case tokenizer_model::Piece::CONTROL:
      return PieceType::kControl;
    case tokenizer_model::Piece::USER_DEFINED:
      return PieceType::kUserDefined;
    case tokenizer_model::Piece::UNUSED:
      return PieceType::kUnused;
    case tokenizer_model::Piece::BYTE:
      return PieceType::kByte;
  }
  return PieceType::kNormal;
}

// The value of a byte piece, "<0x0A>"; -1 if it is none.
int32_t ByteOf(absl::string_view piece) {
  uint32_t value = 0;
  if (piece.size() != 6 || !absl::ConsumePrefix(&piece, "<0x") ||
      !absl::ConsumeSuffix(&piece, ">") || !absl::SimpleHexAtoi(piece, &value)) {
    return -1;
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<std::vector<Vocabulary::Piece>> PiecesOf(const Model& model) {
  std::vector<Vocabulary::Piece> pieces;
  absl::flat_hash_set<absl::string_view> names;
  int32_t unknowns = 0;
  for (const tokenizer_model::Piece& piece : model.pieces()) {
    const int32_t id = static_cast<int32_t>(pieces.size());
    if (piece.piece().empty())
      return absl::InvalidArgumentError(absl::StrCat("its piece ", id, " is empty"));
    if (!std::isfinite(piece.score())) {
      return absl::InvalidArgumentError(
          absl::StrCat("the score of its piece ", id, " is no number"));
    }
    if (!names.insert(piece.piece()).second) {
      return absl::InvalidArgumentError(absl::StrCat("its piece ", id, " appears twice"));
    }
    unknowns += piece.type() == tokenizer_model::Piece::UNKNOWN ? 1 : 0;
    pieces.push_back({piece.piece(), piece.score(), TypeOf(piece.type())});
  }
  if (pieces.empty()) return absl::InvalidArgumentError("it has no pieces");
  if (unknowns != 1)
    return absl::InvalidArgumentError("it needs exactly one piece for unknown text");
  return pieces;
}

class PieceTokenizer final : public Tokenizer {
 public:
  PieceTokenizer(Vocabulary vocabulary, Normalizer normalizer, const Trainer& trainer,
                 bool dummy_prefix)
      : vocabulary_(std::move(vocabulary)),
        normalizer_(std::move(normalizer)),
        bpe_(trainer.model_type() == Trainer::BPE),
        byte_fallback_(trainer.byte_fallback()),
        dummy_prefix_(dummy_prefix),
        unknown_surface_(trainer.unk_surface()),
        byte_ids_(256, -1) {
    for (int32_t id = 0; id < vocabulary_.size(); ++id) {
      const Vocabulary::Piece& piece = vocabulary_.piece(id);
      if (piece.type == PieceType::kControl && piece.text == trainer.eos_piece()) end_token_ = id;
      if (piece.type != PieceType::kByte) continue;
      if (const int32_t byte = ByteOf(piece.text); byte >= 0)
        byte_ids_[static_cast<size_t>(byte)] = id;
    }
  }

  std::vector<int32_t> Encode(absl::string_view text) const override {
    const std::string normalized = normalizer_.Normalize(text);
    const std::vector<Segment> segments =
        bpe_
            ? SegmentBpe(vocabulary_, normalized,
                         [this](absl::string_view rest) { return normalizer_.VerbatimBytes(rest); })
            : SegmentUnigram(vocabulary_, normalized);
    std::vector<int32_t> ids;
    bool after_unknown = false;
    for (const Segment& segment : segments) {
      const bool unknown = segment.id == vocabulary_.unknown();
      if (unknown && byte_fallback_) {
        for (const char c : segment.text) {
          const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
          ids.push_back(id >= 0 ? id : vocabulary_.unknown());
        }
      } else if (!unknown || !after_unknown) {
        ids.push_back(segment.id);  // a run of unknown characters is one token
      }
      after_unknown = unknown;
    }
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text;
    bool first = true;
    for (const int32_t id : tokens) {
      if (id < 0 || id >= vocabulary_.size()) {
        absl::StrAppend(&text, unknown_surface_);
        continue;
      }
      const Vocabulary::Piece& piece = vocabulary_.piece(id);
      if (piece.type == PieceType::kControl) continue;
      if (piece.type == PieceType::kUnknown) {
        absl::StrAppend(&text, unknown_surface_);
      } else if (const int32_t byte = piece.type == PieceType::kByte ? ByteOf(piece.text) : -1;
                 byte >= 0) {
        text.push_back(static_cast<char>(byte));
      } else {
        absl::string_view surface = piece.text;
        if (first && dummy_prefix_) absl::ConsumePrefix(&surface, kSpaceSymbol);
        absl::StrAppend(&text, absl::StrReplaceAll(surface, {{kSpaceSymbol, " "}}));
      }
      first = false;
    }
    return text;
  }

  int32_t end_token() const override { return end_token_; }
  int32_t size() const override { return vocabulary_.size(); }

 private:
  const Vocabulary vocabulary_;
  const Normalizer normalizer_;
  const bool bpe_, byte_fallback_, dummy_prefix_;
  const std::string unknown_surface_;
  std::vector<int32_t> byte_ids_;
  int32_t end_token_ = -1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path,
                                                           const std::vector<std::string>& below) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path, kTokenizerBytesMax, below));
  Model model;
  if (!model.ParseFromString(bytes))
    return absl::InvalidArgumentError("is not a sentencepiece model");
  if (model.pieces_size() == 0)
    return absl::InvalidArgumentError("is not a sentencepiece model: it has no pieces");
  const Trainer& trainer = model.trainer_spec();
  if (trainer.model_type() != Trainer::UNIGRAM && trainer.model_type() != Trainer::BPE) {
    return absl::InvalidArgumentError(
        "is a sentencepiece model of words or characters; must be unigram or bpe");
  }
  absl::StatusOr<std::vector<Vocabulary::Piece>> pieces = PiecesOf(model);
  if (!pieces.ok()) return Annotate(pieces.status(), "is not a sentencepiece model");
  std::vector<std::string> verbatim;
  for (const Vocabulary::Piece& piece : *pieces) {
    if (piece.type == PieceType::kUserDefined) verbatim.push_back(piece.text);
  }
  const tokenizer_model::Normalizer& spec = model.normalizer_spec();
  absl::StatusOr<Normalizer> normalizer =
      Normalizer::Create(spec.precompiled_charsmap(), std::move(verbatim),
                         {.dummy_prefix = spec.add_dummy_prefix(),
                          .whitespace_as_suffix = trainer.treat_whitespace_as_suffix(),
                          .remove_extra_whitespaces = spec.remove_extra_whitespaces(),
                          .escape_whitespaces = spec.escape_whitespaces()});
  if (!normalizer.ok()) return Annotate(normalizer.status(), "is not a sentencepiece model");
  return std::make_unique<PieceTokenizer>(Vocabulary(*std::move(pieces)), *std::move(normalizer),
                                          trainer, spec.add_dummy_prefix());
}

}  // namespace phalanx::data
