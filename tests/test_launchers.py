"""The place of a process by its variables: torch's contract, Slurm, MPI, or none."""

import pytest

from vtool.diagnostics import Findings
from vtool.launchers import LaunchedProcess, check_launch, joined_launch, read_launch

MEETING = "MASTER_ADDR=host0 MASTER_PORT=29500"
STEP = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=2"
# What sbatch gives its script, and salloc its shell, where the job asks for four tasks.
BATCH = "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0"


def variables(text: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split())


def place(text: str) -> tuple[object, ...] | None:
    found = read_launch(variables(text))
    return found and (found.rank, found.world, found.local_rank, found.local_world, found.meets)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 {MEETING}",
            (3, 4, 1, 2, True),
            id="torchrun, accelerate, Ray Train",
        ),
        pytest.param(
            f"RANK=1 WORLD_SIZE=2 {MEETING}", (1, 2, None, None, True), id="Kubeflow's PyTorchJob"
        ),
        pytest.param(
            f"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_SIZE=2 {MEETING}",
            (1, 2, 1, 2, True),
            id="DeepSpeed",
        ),
        pytest.param(
            f"RANK=0 WORLD_SIZE=1 {STEP}", (0, 1, None, None, True), id="a task that says: alone"
        ),
        pytest.param(f"RANK=1 WORLD_SIZE=4 {STEP} {MEETING}", (1, 4, None, None, True), id="both"),
        pytest.param(STEP, (1, 2, 1, None, False), id="srun"),
        pytest.param(f"{STEP} {MEETING}", (1, 2, 1, None, True), id="srun, with an address"),
        pytest.param(
            "SLURM_PROCID=2 SLURM_NTASKS=4", (2, 4, None, None, False), id="an older srun"
        ),
        pytest.param(f"{STEP} PMI_RANK=1 PMI_SIZE=2", (1, 2, 1, None, False), id="srun --mpi=pmi2"),
        pytest.param(f"{STEP} PMI_RANK=5 PMI_SIZE=8", (5, 8, None, None, False), id="by srun"),
        pytest.param(
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0"
            " OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=0",
            (0, 2, 0, 2, False),
            id="Open MPI",
        ),
        pytest.param(
            "MV2_COMM_WORLD_RANK=0 MV2_COMM_WORLD_SIZE=2", (0, 2, None, None, False), id="MVAPICH"
        ),
        pytest.param(
            "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
            (1, 2, 1, 2, False),
            id="Intel MPI",
        ),
        pytest.param("PMIX_RANK=1", (1, 0, None, None, False), id="PMIx"),
        pytest.param("", None, id="nothing"),
        pytest.param("RANK= WORLD_SIZE= LOCAL_RANK=", None, id="empty"),
        pytest.param("WORLD_SIZE=1", None, id="one"),
        pytest.param(MEETING, None, id="an address alone"),
        pytest.param(BATCH, None, id="the script of sbatch"),
        pytest.param(f"{BATCH} SLURM_STEP_ID=4294967291", None, id="the same, as a step"),
        pytest.param(f"{BATCH} SLURM_STEP_ID=4294967290", None, id="an interactive step"),
        pytest.param(f"{BATCH} SLURM_STEP_ID=batch", None, id="the same, by name"),
        pytest.param("SLURM_JOB_ID=7 SLURM_NTASKS=4", None, id="salloc"),
        pytest.param(
            f"{BATCH} SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 SLURM_PTY_PORT=40000",
            None,
            id="srun --pty",
        ),
        pytest.param(
            f"{BATCH} SLURM_STEP_ID=1 SLURM_STEP_NUM_TASKS=1 PMIX_RANK=0", None, id="srun -n 1"
        ),
        pytest.param(
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_RANK=0", None, id="mpirun -n 1"
        ),
    ],
)
def test_the_place_of_a_process_is_what_its_launcher_says(
    text: str, expected: tuple[object, ...] | None
) -> None:
    assert place(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("LOCAL_RANK=abc", "LOCAL_RANK is `abc`, and takes a number from 0 on"),
        ("LOCAL_RANK=0", "RANK and WORLD_SIZE are not set; here: LOCAL_RANK=0"),
        ("RANK=0", "WORLD_SIZE is not set; here: RANK=0"),
        ("RANK= WORLD_SIZE=2", "RANK is empty; here: RANK=, WORLD_SIZE=2"),
        ("RANK=-1 WORLD_SIZE=2", "RANK is `-1`"),
        ("RANK=² WORLD_SIZE=3", "RANK is `²`"),
        ("RANK=0 WORLD_SIZE=0", "WORLD_SIZE is `0`, and takes a number above 0"),
        ("RANK=2 WORLD_SIZE=2", "RANK is 2, and with this WORLD_SIZE 1 at most"),
        ("RANK=0 WORLD_SIZE=2", "MASTER_ADDR and MASTER_PORT are not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h", "MASTER_PORT is not set"),
        ("RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=99999", "MASTER_PORT is no port"),
        (f"{STEP} MASTER_ADDR=h MASTER_PORT=x", "MASTER_PORT is `x`"),
        (
            f"RANK=1 WORLD_SIZE=2 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 {MEETING}",
            "LOCAL_RANK is 2, and with this LOCAL_WORLD_SIZE 1 at most",
        ),
        (
            f"RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=4 {MEETING}",
            "LOCAL_WORLD_SIZE is 4, and with this WORLD_SIZE 2 at most",
        ),
    ],
)
def test_variables_that_are_not_a_rank_are_named_with_their_values(text: str, message: str) -> None:
    with pytest.raises(Findings) as raised:
        read_launch(variables(text))
    (found,) = raised.value.diagnostics
    assert (found.rule, raised.value.fatal) == ("rank-variables", True)
    assert found.message.startswith(message)
    assert text.split(maxsplit=1)[0] in found.message or text.startswith("SLURM")


@pytest.mark.parametrize(
    ("text", "says", "helps"),
    [
        (f"{STEP} SLURM_NNODES=1", "srun has started 2 processes (SLURM_PROCID=1,", "--nproc 2"),
        (f"{STEP} SLURM_NNODES=2", "SLURM_STEP_NUM_TASKS=2", "srun --ntasks-per-node 1 torchrun"),
        (f"RANK=1 {STEP}", "srun has started 2 processes", "torchrun"),
        (
            "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "mpirun has started 2 processes (OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2)",
            "start vtool once (without mpirun) and give it --nproc 2",
        ),
        ("PMIX_RANK=1", "as one of several (PMIX_RANK=1)", "RANK=0 WORLD_SIZE=1 in each"),
    ],
)
def test_processes_that_do_not_know_where_they_meet_are_told_what_to_do(
    text: str, says: str, helps: str
) -> None:
    with pytest.raises(Findings) as raised:
        joined_launch(variables(text))
    (found,) = raised.value.diagnostics
    assert (found.rule, raised.value.fatal) == ("launcher-not-joined", True)
    assert says in found.message
    assert helps in found.remedy


def test_launch_nproc_is_held_against_what_a_launcher_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def check(text: str, nproc: int | None) -> LaunchedProcess | None:
        with monkeypatch.context() as patch:
            for name, value in variables(text).items():
                patch.setenv(name, value)
            return check_launch(nproc)

    torchrun = f"RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 {MEETING}"
    for nproc in (None, 2):
        found = check(torchrun, nproc)
        assert found is not None
        assert found.world == 4
    with pytest.raises(Findings, match=r"launch-conflict.*nproc is 4, but .* 2 processes here"):
        check(torchrun, 4)
    pod = f"RANK=1 WORLD_SIZE=2 {MEETING}"
    with pytest.raises(Findings, match=r"launch\.nproc is 8") as raised:
        check(pod, 8)
    (one,) = raised.value.diagnostics
    assert "torchrun --nnodes 2 --node-rank 1 --nproc-per-node 8 --master-addr" in one.remedy
    # the only pod starts its ranks itself, and torchrun's only process does not
    assert check("RANK=0 WORLD_SIZE=1", 8) is None
    with pytest.raises(Findings, match="launch-conflict"):
        check("RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 TORCHELASTIC_RUN_ID=x", 8)
