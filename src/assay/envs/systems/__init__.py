"""Tasks of running computer systems: scheduling jobs on a cluster, tuning a store's compaction.

`assay/JobScheduling-v0` is in `scheduling`, on workloads from `workload`;
`assay/CompactionRate-v0` is in `tuning`. Each comes with the rules that are used in practice, as
functions of the same simulator, as baselines for a learned policy.
"""
