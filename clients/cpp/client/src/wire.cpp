#include "wire.h"

#include <algorithm>

namespace assay {
namespace {

std::string sentence(const std::string& message, const std::string& fix) {
  return fix.empty() ? message : message + " " + fix;
}

std::size_t roomOf(const Outgoing& outgoing, std::size_t frameBytes) noexcept {
  const std::size_t taken = kHeaderRoom + 16 * outgoing.batch.patches.size();
  // A server that allows next to nothing gets small parts, not an endless number of them.
  return frameBytes > taken + kHeaderRoom ? frameBytes - taken : kHeaderRoom;
}

}  // namespace

void toMessage(const Outgoing& outgoing, std::uint64_t epoch, std::uint64_t dropped,
               v1::Batch& batch) {
  const EncodedBatch& from = outgoing.batch;
  batch.set_epoch(epoch);
  batch.set_seq(outgoing.seq);
  batch.set_dropped(dropped);
  batch.set_episode(from.episode);
  batch.set_start_step(from.startStep);
  batch.set_version(from.version);
  batch.set_steps(from.steps);
  batch.set_codec(v1::RAW);
  batch.set_crc32c(from.crc);
  batch.set_size(from.tensors.size());
  batch.set_raw_size(from.tensors.size());
  batch.set_tensors(from.tensors);
  if (!from.patches.empty()) {
    v1::RewardPatch& patch = *batch.mutable_patch();
    for (const auto& [event, reward] : from.patches) {
      patch.add_event_id(event);
      patch.add_reward(reward);
    }
  }
}

std::uint32_t partsOf(const Outgoing& outgoing, std::size_t frameBytes) noexcept {
  const std::size_t room = roomOf(outgoing, frameBytes);
  return static_cast<std::uint32_t>((outgoing.batch.tensors.size() + room - 1) / room);
}

void toPart(const Outgoing& outgoing, std::size_t frameBytes, std::uint32_t part,
            v1::Batch& whole) {
  const std::size_t room = roomOf(outgoing, frameBytes);
  whole.set_part(part);
  whole.set_parts(partsOf(outgoing, frameBytes));
  whole.set_tensors(outgoing.batch.tensors.substr(part * room, room));
}

Ack fromMessage(const v1::Ack& message) {
  Ack ack;
  ack.epoch = message.epoch();
  ack.committed = message.committed();
  ack.creditBytes = message.credit_bytes();
  ack.creditBatches = message.credit_batches();
  for (const v1::Rejection& rejection : message.rejections()) {
    ack.rejections.push_back({rejection.epoch(), rejection.seq(),
                              static_cast<int>(rejection.reason()),
                              sentence(rejection.message(), rejection.fix())});
  }
  return ack;
}

Failure fromMessage(const v1::Rejection& message) {
  return {static_cast<int>(message.reason()), sentence(message.message(), message.fix())};
}

}  // namespace assay
