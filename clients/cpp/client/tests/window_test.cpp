// Numbers, credits, acknowledgements and refusals, without a network.
#include "window.h"

#include "client_support.h"

namespace assay {
namespace {

EncodedBatch batchOf(std::uint32_t steps, std::size_t bytes = 10) {
  EncodedBatch batch;
  batch.steps = steps;
  batch.tensors.assign(bytes, 'x');
  return batch;
}

Ack ackOf(std::uint64_t committed, std::vector<Rejection> rejections = {}) {
  Ack ack;
  ack.epoch = 5;
  ack.committed = committed;
  ack.creditBytes = 1000;
  ack.creditBatches = 8;
  ack.rejections = std::move(rejections);
  return ack;
}

/// Send all that may be sent; return their numbers and what was dropped before each.
std::vector<std::pair<std::uint64_t, std::uint64_t>> sendAll(SendWindow& window, double now = 0.0) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> sent;
  while (const Outgoing* item = window.next(now)) {
    sent.emplace_back(item->seq, window.droppedBefore(item->seq));
    window.sent(item->seq, now);
  }
  return sent;
}

using Sent = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

TEST(Window, NumbersFromOneAndSettlesWhatIsCommitted) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    window.add(batchOf(i));
  }
  EXPECT_EQ(sendAll(window), (Sent{{1, 0}, {2, 0}, {3, 0}}));
  EXPECT_EQ(window.answer(ackOf(2), 0.0).steps, 3U);
  EXPECT_EQ(window.answer(ackOf(2), 0.0).steps, 0U);  // said twice
  EXPECT_EQ(window.answer(ackOf(3), 0.0).steps, 3U);
  EXPECT_TRUE(window.empty());
}

TEST(Window, StaysWithinItsCredits) {
  SendWindow window;
  window.begin(5, 0, 25, 8, 0.0);
  for (int i = 0; i < 4; ++i) {
    window.add(batchOf(1));
  }
  EXPECT_EQ(sendAll(window).size(), 2U);  // 25 bytes are two batches of 10
  Ack ack = ackOf(1);
  ack.creditBatches = 1;
  window.answer(ack, 0.0);
  EXPECT_TRUE(sendAll(window).empty());  // one is under way
  ack.committed = 2;
  ack.creditBatches = 0;
  window.answer(ack, 0.0);
  EXPECT_TRUE(sendAll(window).empty());
  ack.creditBatches = 5;
  ack.creditBytes = 3;  // less than a batch, but nothing is under way
  window.answer(ack, 0.0);
  EXPECT_EQ(sendAll(window).size(), 1U);
}

TEST(Window, TakesOnlyALittleAheadOfTheCredits) {
  SendWindow window;
  window.begin(5, 0, 1000, 0, 0.0);
  int taken = 0;
  while (window.wantsMore()) {
    window.add(batchOf(1));
    ++taken;
  }
  EXPECT_EQ(taken, 2);
}

TEST(Window, ANewSessionSettlesByItsMarkAndNumbersAnew) {
  SendWindow window;
  window.begin(4, 0, 1000, 8, 0.0);
  for (std::uint32_t i = 1; i <= 4; ++i) {
    window.add(batchOf(i));
  }
  sendAll(window);
  EXPECT_EQ(window.begin(5, 3, 1000, 8, 0.0).steps, 6U);
  EXPECT_EQ(sendAll(window), (Sent{{1, 0}}));
  EXPECT_EQ(window.answer(ackOf(1), 0.0).steps, 4U);
}

TEST(Window, AMarkBeyondWhatWasSentSettlesNothingElse) {
  SendWindow window;
  window.begin(5, 0, 1000, 1, 0.0);
  window.add(batchOf(1));
  window.add(batchOf(2));
  sendAll(window);  // credits for one
  EXPECT_EQ(window.answer(ackOf(99), 0.0).steps, 1U);
  EXPECT_EQ(window.size(), 1U);
  EXPECT_EQ(sendAll(window), (Sent{{2, 0}}));
  EXPECT_EQ(window.begin(6, 99, 1000, 8, 0.0).steps, 2U);  // that one was sent
}

TEST(Window, RefusedContentIsDroppedAndTheRestSentAgain) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  for (std::uint32_t i = 1; i <= 4; ++i) {
    window.add(batchOf(i));
  }
  sendAll(window);
  auto settled = window.answer(ackOf(1, {{5, 2, 20, "not finite"},
                                         {5, 3, reason::kSequenceGap, ""},
                                         {5, 4, reason::kSequenceGap, ""}}),
                               0.0);
  EXPECT_EQ(settled.steps, 1U);
  EXPECT_EQ(settled.refused, 2U);
  EXPECT_EQ(settled.refusal, "not finite");
  EXPECT_EQ(sendAll(window), (Sent{{3, 1}, {4, 0}}));
  EXPECT_EQ(window.answer(ackOf(4), 0.0).steps, 7U);
}

TEST(Window, NumbersThatAreTooLargeAreContent) {
  for (const int why : {25, 26, 31}) {
    SendWindow window;
    window.begin(5, 0, 1000, 8, 0.0);
    window.add(batchOf(1));
    sendAll(window);
    EXPECT_GT(window.answer(ackOf(0, {{5, 1, why, "too large"}}), 0.0).refused, 0U) << why;
    EXPECT_EQ(window.size(), 0U) << why;
  }
}

TEST(Window, APolicyThatIsPausedIsAskedEveryFewSeconds) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  window.add(batchOf(1));
  double now = 0.0;
  for (const double pause : {1.0, 2.0, 4.0, 5.0, 5.0}) {
    EXPECT_EQ(sendAll(window, now), (Sent{{1, 0}}));
    window.answer(ackOf(0, {{5, 1, reason::kPolicyPaused, "paused"}}), now);
    EXPECT_EQ(sendAll(window, now + pause - 0.01), Sent{}) << pause;
    now += pause;
  }
}

TEST(Window, WhatWasRefusedAtTheEndIsMissingBeforeTheNext) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  window.add(batchOf(1));
  sendAll(window);
  window.answer(ackOf(0, {{5, 1, 19, "wrong shape"}}), 0.0);
  window.add(batchOf(2));
  window.add(batchOf(3));
  EXPECT_EQ(sendAll(window), (Sent{{2, 1}, {3, 0}}));
}

TEST(Window, WhatMayPassIsSentAgainAfterAPause) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  window.add(batchOf(1));
  sendAll(window);
  window.answer(ackOf(0, {{5, 1, reason::kResourceExhausted, "disk"}}), 10.0);
  EXPECT_TRUE(sendAll(window, 10.0).empty());
  EXPECT_EQ(sendAll(window, 10.2), (Sent{{1, 0}}));
  window.answer(ackOf(0, {{5, 1, reason::kResourceExhausted, "disk"}}), 11.0);
  EXPECT_TRUE(sendAll(window, 11.15).empty());  // the pause has grown
  EXPECT_EQ(sendAll(window, 11.3).size(), 1U);
}

TEST(Window, DamageIsSentAgainAFewTimes) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  window.add(batchOf(1));
  std::size_t refused = 0;
  int sends = 0;
  while (!window.empty() && sends < 100) {
    sends += static_cast<int>(sendAll(window).size());
    refused += window.answer(ackOf(0, {{5, 1, reason::kChecksumMismatch, "damaged"}}), 0.0).refused;
  }
  EXPECT_EQ(sends, 4);
  EXPECT_EQ(refused, 1U);
}

TEST(Window, FencedEndsTheSession) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  window.add(batchOf(1));
  sendAll(window);
  const auto settled = window.answer(ackOf(0, {{5, 1, reason::kFenced, "taken over"}}), 0.0);
  ASSERT_TRUE(settled.end.has_value());
  EXPECT_EQ(settled.end->reason, reason::kFenced);
  EXPECT_EQ(window.size(), 1U);  // and loses nothing
}

TEST(Window, AnswersOfAnotherSessionMeanNothing) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  window.add(batchOf(1));
  sendAll(window);
  Ack old = ackOf(1, {{4, 1, 20, "not finite"}});
  old.epoch = 4;
  EXPECT_EQ(window.answer(old, 0.0).steps, 0U);
  EXPECT_EQ(window.answer(ackOf(0, {{4, 1, 20, "not finite"}}), 0.0).refused, 0U);
  EXPECT_EQ(window.size(), 1U);
}

TEST(Window, KnowsHowLongABatchHasNoAnswer) {
  SendWindow window;
  window.begin(5, 0, 1000, 8, 0.0);
  EXPECT_EQ(window.unansweredSeconds(50.0), 0.0);
  window.add(batchOf(1));
  sendAll(window, 50.0);
  EXPECT_EQ(window.unansweredSeconds(53.0), 3.0);
  window.answer(ackOf(0), 53.0);  // a heartbeat is not an answer
  EXPECT_EQ(window.unansweredSeconds(54.0), 4.0);
}

}  // namespace
}  // namespace assay
