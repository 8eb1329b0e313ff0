"""Parameters of environments that change from episode to episode.

    randomize={gravity: [8, 12], masspole: {log_uniform: [0.05, 0.5]}}
    curriculum={adr: {low: 100, high: 400}}

`randomize` says what is drawn for every episode of every copy, and a `curriculum` says which part
of that is drawn now. Both are for training: evaluations are in the environment as it is.

Values are drawn one episode ahead, because a copy is reset in the step that ends its episode, maybe
in another process. So what an episode shows counts from the episode after the next one on, whatever
steps the copies.
"""
