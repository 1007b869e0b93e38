"""Rules of launching: the ranks of a run, and what starts them."""

from vtool.diagnostics.rule import Rule

RULES = (
    Rule(
        name="launch-conflict",
        code="VT208",
        summary=(
            "launch.nproc is not the number of processes that an outer launcher has started here,"
            " or a variable of it contradicts a setting."
        ),
        why=(
            "One of the two would be ignored, and with it the speed that was asked for: each"
            " process would train the whole run by itself."
        ),
        bad="torchrun --nproc-per-node 4 -m vtool train sft digits launch.nproc=2",
        good="torchrun --nproc-per-node 4 -m vtool train sft digits",
        fix=(
            "Leave launch.nproc out under torchrun, or let vtool start the processes: vtool train"
            " sft digits launch.nproc=4."
        ),
    ),
    Rule(
        name="launcher-not-joined",
        code="VT525",
        summary="Slurm or MPI has started several processes, which do not know where they meet.",
        why=(
            "Each would be a run of its own, of the same rows and in the same folder: twice the"
            " machines, and the result of one."
        ),
        bad="mpirun -n 2 vtool train sft digits",
        good="vtool train sft digits --nproc 2",
        fix=(
            "On one machine: start vtool once, with --nproc. On several: one torchrun on each, or"
            " MASTER_ADDR and MASTER_PORT beside the launcher's variables (docs/launch.md). For"
            " runs that have nothing to do with each other: RANK=0 WORLD_SIZE=1 in each."
        ),
    ),
    Rule(
        name="rank-variables",
        code="VT526",
        summary=(
            "RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not"
            " complete, contradict each other, or are not numbers."
        ),
        why=(
            "A process that takes itself for the only one trains the whole run by itself; one that"
            " takes another's place waits for hours, or for ever."
        ),
        bad="RANK=2 WORLD_SIZE=2",
        good="RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=host0 MASTER_PORT=29500",
        fix="Give each process all of them, as torchrun does, or unset all of them.",
    ),
)
