"""Wrappers as a setting: what an agent sees, does and gets, changed for all copies at once.

    wrappers=[{frame_stack: 4}, {noise: 0.1}, sign_reward]

They work on the arrays of all copies, whatever steps these, in the order in which they are listed:
the first is nearest to the environment. `action_repeat`, `frame_skip` and `options` are the
exception: they are inside of every copy, below all others, because an episode may end before they
do. (Native environments repeat actions in all copies at once.)
Rewards are changed in training only; evaluations report the environment's own.
"""
