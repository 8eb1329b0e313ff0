"""The task, as terms of managers."""

from isaaclab.envs import ManagerBasedRLEnvCfg
from isaaclab.managers import CurriculumTermCfg as CurrTerm
from isaaclab.managers import EventTermCfg as EventTerm
from isaaclab.managers import ObservationTermCfg as ObsTerm
from isaaclab.managers import RewardTermCfg as RewTerm
from isaaclab.managers import TerminationTermCfg as DoneTerm
from isaaclab.utils import configclass

from . import mdp


@configclass
class ObservationsCfg:
    joint_pos = ObsTerm(func=mdp.joint_pos_rel)


@configclass
class EventCfg:
    belly_mass = EventTerm(
        func=mdp.randomize_rigid_body_mass,
        mode="startup",
        params={"mass_distribution_params": (-1.0, 3.0)},
    )
    push = EventTerm(
        func=mdp.push_by_setting_velocity, mode="interval", interval_range_s=(8.0, 12.0)
    )
    back_to_start = EventTerm(func=mdp.reset_scene_to_default, mode="reset")


@configclass
class RewardsCfg:
    belly = RewTerm(func=mdp.belly_height, weight=1.0, params={"target": 0.3})
    slip = RewTerm(func=mdp.feet_slip, weight=-0.2, params={"threshold": 0.1})
    action_rate = RewTerm(func=mdp.action_rate_l2, weight=-0.01)


@configclass
class TerminationsCfg:
    time_out = DoneTerm(func=mdp.time_out, time_out=True)
    base_contact = DoneTerm(func=mdp.illegal_contact, params={"threshold": 1.0})


@configclass
class CurriculumCfg:
    terrain = CurrTerm(func=mdp.raise_terrain)


@configclass
class CrawlerEnvCfg(ManagerBasedRLEnvCfg):
    observations: ObservationsCfg = ObservationsCfg()
    events: EventCfg = EventCfg()
    rewards: RewardsCfg = RewardsCfg()
    terminations: TerminationsCfg = TerminationsCfg()
    curriculum: CurriculumCfg = CurriculumCfg()
