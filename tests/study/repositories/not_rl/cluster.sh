#!/bin/bash
#SBATCH --gres=gpu:1
srun python train.py --epochs 50
