"""Host time of one ncclAllReduce on a communicator of one rank: blocking = 1 vs. blocking = 0, which makes a thread per call."""

import ctypes
import json
import time

import torch

UNDEFINED = -(2 ** 31)
FLOAT, SUM, IN_PROGRESS, COUNT = 7, 0, 7, 9155


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Config(ctypes.Structure):
    _fields_ = (
        [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("blocking", ctypes.c_int)]
        + [(name, ctypes.c_int) for name in ("cga", "min_ctas", "max_ctas")]
        + [("net", ctypes.c_void_p), ("split", ctypes.c_int), ("traffic", ctypes.c_int), ("name", ctypes.c_void_p)]
        + [(name, ctypes.c_int) for name in ("collnet", "policy", "shrink", "nvls", "channels", "nvlink")]
    )


def connect(nccl, blocking):
    config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 22800, blocking)
    for name, kind in Config._fields_[4:]:
        if kind is ctypes.c_int:
            setattr(config, name, UNDEFINED)
    unique, comm, state = Id(), ctypes.c_void_p(), ctypes.c_int()
    assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
    status = nccl.ncclCommInitRankConfig(ctypes.byref(comm), 1, unique, 0, ctypes.byref(config))
    deadline = time.monotonic() + 30
    while status == IN_PROGRESS and time.monotonic() < deadline:
        nccl.ncclCommGetAsyncError(comm, ctypes.byref(state))
        status = state.value
    assert status == 0, status
    return comm


def main():
    values, stream = torch.zeros(COUNT, device="cuda"), torch.cuda.Stream()
    nccl, version, state = ctypes.CDLL("libnccl.so.2"), ctypes.c_int(), ctypes.c_int()
    pointer = ctypes.c_void_p
    nccl.ncclCommInitRankConfig.argtypes = [pointer, ctypes.c_int, Id, ctypes.c_int, pointer]
    nccl.ncclAllReduce.argtypes = [pointer, pointer, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, pointer, pointer]
    nccl.ncclCommGetAsyncError.argtypes = [pointer, pointer]
    nccl.ncclGetVersion(ctypes.byref(version))
    found = {"version": version.value}
    for blocking in (1, 0):
        comm, times = connect(nccl, blocking), []
        for _ in range(600):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            status = nccl.ncclAllReduce(values.data_ptr(), values.data_ptr(), COUNT, FLOAT, SUM, comm, stream.cuda_stream)
            while status == IN_PROGRESS:
                nccl.ncclCommGetAsyncError(comm, ctypes.byref(state))
                status = state.value
            times.append(time.perf_counter() - begun)
        times = sorted(times[100:])
        found[f"blocking = {blocking}, us at 5%, 50%, 95%"] = [round(times[int(len(times) * part)] * 1e6, 1) for part in (0.05, 0.5, 0.95)]
    print(json.dumps(found))


main()
