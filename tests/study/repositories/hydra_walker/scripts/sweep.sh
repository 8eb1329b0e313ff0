#!/usr/bin/env bash
for seed in 1 2 3 4; do
  tmux new-session -d -s "walker-$seed" "python scripts/train.py seed=$seed"
done
