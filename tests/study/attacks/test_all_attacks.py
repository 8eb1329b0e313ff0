"""The index of attacks: what was tried on studies, by number, and the test that shows its end.

The first fifty are those of people who attacked the first version; the rest are our own. Each is
refused, has no effect, or shows in `verify`, the audit or the report.
"""

from __future__ import annotations

import re
from pathlib import Path

ATTACKS = {
    1: ("edit or commit an evaluation file", "test_a_hostile_agent_is_refused_by_name"),
    2: ("patch an evaluation file", "test_what_is_refused"),
    3: ("a file in metric_extractors", "test_a_hostile_agent_is_refused_by_name"),
    4: ("another metric after approval", "test_an_edit_voids_the_approval_of_its_part_alone"),
    5: ("a seed of another pool", "test_a_seed_outside_the_pool"),
    6: ("drop a seed", "test_leaving_out_bad_seeds_is_found"),
    7: ("edit a frozen candidate", "test_another_candidate"),
    8: ("raise the budget", "test_a_hostile_agent_is_refused_by_name"),
    9: ("another command", "test_another_command"),
    10: ("a token of something else", "test_only_the_token_of_the_dry_run_launches"),
    11: ("a value out of scope", "test_a_parameter_out_of_scope_is_refused_when_validated"),
    12: ("arguments in a value", "test_a_parameter_out_of_scope_is_refused_when_validated"),
    13: ("git replace", "test_13_a_replaced_commit_is_not_what_runs"),
    14: ("a smudge filter", "test_14_a_smudge_filter_is_noticed"),
    15: ("a hook of Git", "test_hooks_of_the_repository_do_not_run"),
    16: ("files in out/ before", "test_16_17_what_lies_there_before_is_refused"),
    17: ("a log before", "test_16_17_nor_what_is_laid_in_after_the_launch"),
    18: ("sitecustomize", "test_18_one_that_appears_between_deciding_runs_is_refused"),
    19: ("another git in PATH", "test_deciding_runs_have_the_same_one"),
    20: ("a patch that writes its score", "test_59_patches_of_what_measures_itself_are_warned_of"),
    21: ("training poisons the environment", "test_21_one_that_the_training_writes_is_noticed"),
    22: ("patch an import of the evaluation", "test_22_a_patch_of_an_import_is_refused"),
    23: ("edit untracked data", "test_23_an_edit_between_deciding_runs_is_refused"),
    24: ("the stop switch as a re-roll", "test_it_is_on_record_and_counts_as_a_lost_run"),
    25: ("look, discard, propose again", "test_the_same_change_under_another_name_is_recognised"),
    26: ("choose among baselines", "test_it_is_limited_and_shown"),
    27: ("shadow an import", "test_27_an_import_shadowed_in_the_evaluation_worktree"),
    28: ("swap a checkpoint", "test_28_a_swapped_checkpoint_is_noticed"),
    29: ("a daemon", "test_what_training_left_running_is_ended_before_it"),
    30: ("numbers that are none", "test_30_a_huge_number_is_no_score"),
    31: ("several at once", "test_two_loops_share_a_study"),
    32: ("edit the ledger", "test_any_edit_is_found_where_it_is"),
    33: ("rewrite it all", "test_a_history_that_was_rewritten_upon_the_old_one_in_git"),
    34: ("forge runs", "test_a_measurement_that_was_changed_and_everything_chained_again"),
    35: ("approve oneself", "test_without_a_key_the_report_says_that_nobody_proved_it"),
    36: ("a worse baseline by a commit", "test_36_another_commit_asks_for_approval_again"),
    37: ("an old contract", "test_an_approval_that_was_withdrawn_does_not_come_back"),
    38: ("links", "test_a_link_does_not_pass_for_its_file"),
    39: ("kill, and edit the output", "test_output_that_is_edited_before_it_is_measured"),
    40: ("forge state.json", "test_status_reads_the_ledger"),
    41: ("LD_PRELOAD, PYTHONPATH", "test_what_changes_imports_is_not_passed_on_by_default"),
    42: ("a made-up verdict", "test_a_verdict_that_was_made_up"),
    43: ("endless output", "test_a_run_that_writes_too_much_fails"),
    44: ("a full disk", "test_a_full_disk_leaves_it_as_it_was"),
    45: ("a submodule", "test_45_a_submodule_is_there_and_what_is_edited_in_it_is_not"),
    46: ("a candidate of another study", "test_a_candidate_of_another_study"),
    47: ("a clock that runs back", "test_verify_finds_it"),
    48: ("an overrun", "test_an_overrun_is_ended"),
    49: ("kill -9 as a re-roll", "test_runs_that_were_killed_count_in_both_arms"),
    50: ("an editable install", "test_50_a_patch_takes_effect"),
    51: ("a key twice", "test_51_a_key_that_is_there_twice_is_refused"),
    52: ("hidden characters", "test_52_texts_that_a_terminal_hides_are_refused"),
    53: ("other packages for one arm", "test_53_other_packages_for_one_arm"),
    54: ("other hardware for one arm", "test_54_other_hardware_for_one_arm"),
    55: ("a result that is a link", "test_55_a_result_that_is_a_link_to_another_run"),
    56: ("more files of the metric", "test_56_more_files_for_the_metric_than_the_rival_has"),
    57: ("a monitor of Git", "test_57_a_file_system_monitor_of_git_is_not_started"),
    58: ("an edit that Git overlooks", "test_58_an_edit_that_git_is_told_not_to_see_has_no_effect"),
    59: ("patch what measures", "test_59_patches_of_what_measures_itself_are_warned_of"),
    60: ("make the rival worse", "test_60_a_rival_that_is_made_worse_afterwards"),
    61: (
        "shadow the standard library",
        "test_61_a_module_of_the_patch_that_shadows_the_standard_library",
    ),
}


def test_every_attack_has_a_test() -> None:
    texts = [path.read_text() for path in Path(__file__).parent.parent.rglob("test_*.py")]
    known = {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}
    assert list(ATTACKS) == list(range(1, 62))
    assert [test for _, test in ATTACKS.values() if test not in known] == []
