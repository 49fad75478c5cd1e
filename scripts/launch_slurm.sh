#!/usr/bin/env bash
# Train on SLURM, one task a node and torchrun in each:
#
#     sbatch scripts/launch_slurm.sh run_name=mine data_path=data/arc-2-aug-1000 ...
#
# from the project's folder, which all nodes see, as they see the data. Before the time limit, and when
# the job is preempted, all ranks save and leave with 75: then the job goes back into the queue and
# resumes. Any other exit code ends it.
#
# Change: nodes, GPUs, CPUs, time and partition below (sbatch's command line overrides them). PYTHON is the
# interpreter (.venv/bin/python), RANKS_PER_NODE how many ranks a node has (one for each GPU).
#SBATCH --job-name=recursive-reasoning
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
# To the ranks and torchrun, not to this script, so many seconds before the end.
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:?is set by sbatch}" || exit 2

# How long torchrun waits for the ranks to save before it kills them (its own default is 30 s).
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=150

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 20000))

# The name of the run must outlive the requeue; a later run_name= or checkpoint_path= counts.
# --kill-on-bad-exit=0: a node that has saved must not end one that is about to leave with 75.
srun --kill-on-bad-exit=0 --wait=300 \
    "${PYTHON:-.venv/bin/python}" scripts/launch.py \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${RANKS_PER_NODE:-gpu}" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-conf=read_timeout=1800 --max-restarts=3 \
    pretrain.py run_name="slurm-$SLURM_JOB_ID" "$@"
code=$?

if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
