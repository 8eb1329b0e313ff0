"""Board games as environments, and players to play them against.

`tictactoe` and `connect_four` are environments in which one agent plays both seats, or one seat
against a built-in player (`opponent`): `vector`. The players are in `players`, and the rules, which
search algorithms need as well, in `assay.functional.boards`.
"""
