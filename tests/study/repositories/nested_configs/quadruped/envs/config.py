"""All settings, as classes of classes."""


class TrotCfg:
    class env:
        num_envs = 4096

    class terrain:
        mesh_type = "trimesh"
        curriculum = True

    class domain_rand:
        randomize_friction = True
        friction_range = (0.5, 1.25)
        push_robots = True

    class rewards:
        class scales:
            tracking_lin_vel = 1.0
            torques = -0.00001
            feet_air_time = 1.0

        only_positive_rewards = True

    class runner:
        max_iterations = 1500
        checkpoint = -1
