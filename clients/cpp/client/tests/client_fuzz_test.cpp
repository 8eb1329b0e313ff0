// Mutated configs, specs, answers and model chunks: refused or harmless; under the sanitizers
// nothing else passes.
#include <google/protobuf/stubs/logging.h>

#include <cstdlib>

#include "assay.pb.h"
#include "client_support.h"
#include "keeper.h"
#include "transport.h"
#include "window.h"
#include "wire.h"

namespace assay {
namespace {

using testing::Json;

int fuzzRounds(int usual) {
  const char* asked = std::getenv("ASSAY_FUZZ_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : usual;
}

std::size_t placeIn(std::size_t size, Random& random) {
  return static_cast<std::size_t>(random.uniform() * static_cast<double>(size));
}

void mutateText(std::string& text, Random& random, bool binary) {
  static const std::string kTelling = "0123456789-.,:[]{}\"eEnultrfas";
  const std::size_t count = 1 + placeIn(5, random);
  for (std::size_t i = 0; i < count && !text.empty(); ++i) {
    const std::size_t at = placeIn(text.size(), random);
    const char byte = binary || random.uniform() < 0.2 ? static_cast<char>(random.next())
                                                       : kTelling[placeIn(kTelling.size(), random)];
    switch (placeIn(5, random)) {
      case 0:
        text[at] = byte;
        break;
      case 1:
        text.insert(at, 1, byte);
        break;
      case 2:
        text.erase(at, 1 + placeIn(12, random));
        break;
      case 3:
        text.insert(at, text.substr(placeIn(text.size(), random), placeIn(30, random)));
        break;
      default:
        if (random.uniform() < 0.3) {
          text.resize(at);
        }
        break;
    }
  }
}

TEST(ClientFuzz, ConfigsAreReadOrRefused) {
  const std::string original =
      R"({"address": "localhost:50051", "policy": "queue", "algorithm": "ppo", "masks": true,
          "observation": {"kind": "dict", "spaces": {"a": {"kind": "box", "shape": [2, 2],
          "low": [0, -1.5, null, 0], "high": 3}, "b": {"kind": "tuple", "spaces":
          [{"kind": "multi_discrete", "nvec": [2, 3]}, {"kind": "multi_binary", "shape": [4]}]}}},
          "action": {"kind": "multi_discrete", "nvec": [2, 4]}, "settings": {"gamma": 0.9},
          "safe_action": [0, 1], "tls": {"ca": "x"}, "batch_steps": 8, "model_ttl": 1e2})";
  ASSERT_TRUE(ClientConfig::fromJson(original).ok());
  Random random(11);
  int read = 0;
  const int rounds = fuzzRounds(4000);
  for (int round = 0; round < rounds; ++round) {
    std::string text = original;
    mutateText(text, random, false);
    const auto config = ClientConfig::fromJson(text);
    if (!config) {
      EXPECT_FALSE(config.error().message.empty());
      continue;
    }
    ++read;
    const auto problem = config.value().problem();
    EXPECT_TRUE(!problem || !problem->message.empty());
    // What was read is read again.
    EXPECT_TRUE(PolicySpec::fromJson(config.value().spec->json()).ok());
  }
  EXPECT_GT(read, 0);
  EXPECT_LT(read, rounds);
}

TEST(ClientFuzz, AnswersSettleNothingTwiceAndNothingThatWasNotSent) {
  const google::protobuf::LogSilencer quiet;
  Random random(12);
  for (int round = 0; round < fuzzRounds(3000); ++round) {
    SendWindow window;
    window.begin(5, 0, 100, 4, 0.0);
    std::size_t sent = 0;
    std::size_t settled = 0;
    double now = 0.0;
    for (int turn = 0; turn < 12; ++turn) {
      while (window.wantsMore() && random.uniform() < 0.8) {
        EncodedBatch batch;
        batch.steps = 1;
        batch.tensors.assign(10, 'x');
        window.add(std::move(batch));
      }
      while (const Outgoing* item = window.next(now)) {
        sent += item->sent ? 0 : 1;
        window.sent(item->seq, now);
      }
      v1::Ack message;
      message.set_epoch(5);
      message.set_committed(placeIn(8, random));
      message.set_credit_bytes(placeIn(100, random));
      message.set_credit_batches(static_cast<std::uint32_t>(placeIn(6, random)));
      for (std::size_t i = placeIn(3, random); i > 0; --i) {
        v1::Rejection& rejection = *message.add_rejections();
        rejection.set_epoch(5);
        rejection.set_seq(placeIn(8, random));
        rejection.set_reason(static_cast<v1::Reason>(placeIn(90, random)));
        rejection.set_message("no");
      }
      std::string bytes = message.SerializeAsString();
      if (random.uniform() < 0.7) {
        mutateText(bytes, random, true);
      }
      v1::Ack received;
      if (!received.ParseFromString(bytes)) {
        continue;
      }
      const auto result = window.answer(fromMessage(received), now);
      settled += result.steps + result.refused;
      ASSERT_LE(settled, sent);
      if (result.end) {
        // What was sent and is still there counts as not sent in the next session.
        std::size_t left = 0;
        const auto mark = window.begin(5, placeIn(8, random), 100, 4, now);
        settled += mark.steps;
        ASSERT_LE(settled, sent);
        left = window.size();
        sent = settled;
        ASSERT_LE(left, 100U);
      }
      now += random.uniform();
    }
  }
}

TEST(ClientFuzz, ModelChunksAreJoinedOrRefused) {
  const PolicySpec spec = testing::choiceSpec();
  const std::string model = testing::choiceModel(3, 1);
  const std::string sha256 = testing::shaOf(model);
  const google::protobuf::LogSilencer quiet;
  ModelMailbox mailbox;
  Random random(13);
  int joined = 0;
  for (int round = 0; round < fuzzRounds(3000); ++round) {
    ModelKeeper keeper(spec.parts(), "", [] { return 0.0; }, mailbox);
    const std::size_t chunkSize = 1 + placeIn(model.size(), random);
    const bool damage = random.uniform() < 0.9;
    ChunkAssembler assembler(damage && random.uniform() < 0.2 ? random.next() : model.size());
    std::string trouble;
    for (std::size_t at = 0; at < model.size() && trouble.empty(); at += chunkSize) {
      v1::ModelChunk chunk;
      chunk.set_offset(at);
      chunk.set_data(model.substr(at, chunkSize));
      std::string bytes = chunk.SerializeAsString();
      if (damage && random.uniform() < 0.5) {
        mutateText(bytes, random, true);
      }
      v1::ModelChunk received;
      if (!received.ParseFromString(bytes)) {
        trouble = "no message";
        break;
      }
      trouble = assembler.add(received.offset(), received.data(), received.base_sha256());
    }
    trouble = trouble.empty() ? assembler.finish() : trouble;
    if (trouble.empty()) {
      ++joined;
      EXPECT_EQ(keeper.offer(assembler.bytes(), sha256), assembler.bytes() == model);
    }
  }
  EXPECT_GT(joined, 0);
}

}  // namespace
}  // namespace assay
