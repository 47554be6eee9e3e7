"""Checks of a node that need torch: its devices, and whether all nodes' processes can sum a tensor together."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from rlsweep.store.files import read_json
from rlsweep.train.probe.node import Found, Here

_SIZE = 256
_WAIT_S = 240.0
"""A node that waited in vain for what another writes comes here that much later."""
_DRIVER = Path("/proc/driver/nvidia/version")


def torch(here: Here) -> Found:
    """Version of torch, its devices against those asked for, and a small product on each."""
    import torch

    wanted = here.request.devices
    about = f"torch {torch.__version__}"
    if not wanted:
        return _multiply("cpu", about) or ("ok", f"{about}, computes on the CPU")
    driver = _driver()
    about += f" for CUDA {torch.version.cuda}, driver {driver}"
    if torch.version.cuda is None:
        return "failed", f"{about}: this torch was built without CUDA; install one with it in the job's interpreter"
    count = torch.cuda.device_count()
    if count < wanted:
        why = "see gpus in the profile" if driver != "none" else "the node has no NVIDIA driver: see partition and gpus"
        return "failed", f"{about}: {count} of {wanted} devices are visible; {why}"
    told = []
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        wrong = _multiply(f"cuda:{index}", about)
        if wrong:
            return wrong
        told.append(
            f"{properties.name} ({properties.major}.{properties.minor}, {properties.total_memory / 2**30:.0f} GB)"
        )
    kinds = ", ".join(f"{told.count(each)} x {each}" for each in dict.fromkeys(told))
    if count > wanted:
        return "warning", f"{about}: {kinds}; only {wanted} were asked for: the site doesn't hide other jobs' devices"
    return "ok", f"{about}: {kinds}"


def collective(here: Here) -> Found:
    """Whether one process a device, on all nodes together, can sum a tensor: they meet where ranks of runs meet."""
    each = max(1, here.request.devices)
    world = here.request.nodes * each
    if here.request.nodes == 1:
        address, port = "127.0.0.1", 0
    else:
        deadline = time.monotonic() + _WAIT_S
        meet = here.meeting / "meet.json"
        while not meet.exists():
            if time.monotonic() > deadline:
                return "failed", f"rank 0 has not said within {_WAIT_S:.0f} s where to meet; see its own checks"
            time.sleep(0.1)
        found = read_json(meet)
        address, port = found["address"], found["port"]
    if world == 1:
        return "ok", "one process: nothing to meet; with --nodes 2 it is tried between nodes"
    backend = "nccl" if here.request.devices else "gloo"
    began = time.monotonic()
    command = [sys.executable, "-m", "rlsweep.train.probe.devices", backend, address, str(port or _free_port())]
    ranks = [
        subprocess.Popen(
            [*command, str(here.rank * each + index), str(world), str(index)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(each)
    ]
    said = [process.communicate()[1] for process in ranks]
    for process, words in zip(ranks, said, strict=True):
        if process.returncode:
            lines = [line.strip() for line in words.splitlines() if line.strip()] or ["it said nothing"]
            return "failed", (
                f"{world} processes could not sum a tensor with {backend} at {address}:{port} ({lines[-1]}); is the "
                f"port open between nodes, is {_interface(backend)} the right network?"
            )
    return (
        "ok",
        f"{world} processes summed a tensor with {backend}, met at {address} in {time.monotonic() - began:.1f} s",
    )


def reduce(backend: str, address: str, port: int, rank: int, world: int, index: int) -> None:
    """One process of the collective. RuntimeError where the sum is wrong."""
    import torch
    import torch.distributed as together

    device = torch.device("cpu" if backend == "gloo" else f"cuda:{index}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    host = f"[{address}]" if ":" in address else address
    together.init_process_group(
        backend,
        init_method=f"tcp://{host}:{port}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=_WAIT_S),
    )
    mine = torch.full((1000,), float(rank + 1), device=device)
    together.all_reduce(mine)
    if not bool((mine == world * (world + 1) / 2).all()):
        raise RuntimeError(f"the sum is {mine[0].item()}, not {world * (world + 1) / 2}")
    together.barrier()
    together.destroy_process_group()


def _multiply(device: str, about: str) -> Found | None:
    """What is wrong with a product on a device, None where it is right."""
    import torch

    try:
        ones = torch.ones(_SIZE, _SIZE, device=device)
        right = bool((ones @ ones == _SIZE).all())
    except RuntimeError as error:
        first = str(error).strip().splitlines()[0]
        return (
            "failed",
            f"{about}: {device} can't compute ({first}); does this torch support the device and its driver?",
        )
    return None if right else ("failed", f"{about}: {device} multiplies wrongly; have the node looked at (exclude it)")


def _driver() -> str:
    try:
        words = _DRIVER.read_text().split()
    except OSError:
        return "none"
    return next((word for word in words if word.count(".") >= 1 and word.replace(".", "").isdigit()), "unknown")


def _interface(backend: str) -> str:
    name = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    return f"{name} ({os.environ.get(name, 'not set')})"


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    name, where, *numbers = sys.argv[1:]
    reduce(name, where, *map(int, numbers))
