"""Tasks of running computer systems: scheduling jobs on a cluster, tuning a store's compaction.

`assay/JobScheduling-v0` is in `scheduling`, on workloads from `workload`;
`assay/CompactionRate-v0` is in `tuning`. Each comes with the rules that people use today, as
functions of the same simulator, so that a learnt policy has something to beat.
"""
