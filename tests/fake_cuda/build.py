"""Builds the fake NVIDIA libraries next to a copy of libtorch.

    python3 build.py TORCH OUT [LIBRARY:SYMBOL...]        (TORCH: the folder with lib/libtorch_cuda.so)

A LIBRARY is then built without a SYMBOL. OUT/torch is then a libtorch to run with, OUT/driver the folder for LD_LIBRARY_PATH, and OUT/python that for PYTHONPATH. libtorch's own files are hard links
(a process is asked where its libtorch lies, and the kernel would name the target of a symbolic one). The libraries that libtorch_cuda.so needs are made from the symbols that it asks for:
cuBLAS, cuDNN and the like do nothing. The last line printed is empty, or the reason why nothing can be built here."""

import fcntl
import hashlib
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = sorted(HERE.rglob("*.[ch]")) + [pathlib.Path(__file__).resolve()]
# Libraries of libtorch whose symbols are looked up, and the order in which folders are searched for what they
# need.
ASKING = ["libtorch_cuda.so", "libc10_cuda.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so", "libtorch_cpu.so", "libtorch_cuda_linalg.so", "libtorch_python.so"]
FOLDERS = {
    "libcudart.so.13": "nvidia/cu13/lib",
    "libcublas.so.13": "nvidia/cu13/lib",
    "libcublasLt.so.13": "nvidia/cu13/lib",
    "libcudnn.so.9": "nvidia/cudnn/lib",
    "libcusparse.so.12": "nvidia/cu13/lib",
    "libcusolver.so.12": "nvidia/cu13/lib",
    "libcufft.so.12": "nvidia/cu13/lib",
    "libcurand.so.10": "nvidia/cu13/lib",
    "libcusparseLt.so.0": "nvidia/cusparselt/lib",
    "libcufile.so.0": "nvidia/cu13/lib",
    "libnvshmem_host.so.3": "nvidia/nvshmem/lib",
    "libnvrtc.so.13": "nvidia/cu13/lib",
    "libcupti.so.13": "nvidia/cu13/lib",
    "libnccl.so.2": "nvidia/nccl/lib",
}
WRITTEN = {"libcudart.so.13": "runtime.c", "libnccl.so.2": "nccl.c"}
# Functions of those that give something back.
GIVING = {
    "cublasCreate_v2": "int {}(void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cudnnCreate": "int {}(void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cublasLtCreate": "int {}(void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cublasLtMatmulDescCreate": "int {}(void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cublasLtMatrixLayoutCreate": "int {}(void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cublasLtMatmulPreferenceCreate": "int {}(void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cublasLtMatmulAlgoGetHeuristic": "int {}(void* a, void* b, void* c, void* d, void* e, void* f, void* g, int r, void* h, int* k) {{ *k = 1; return 0; }}",
    "cublasGetPointerMode_v2": "int {}(void* h, int* p) {{ *p = 0; return 0; }}",
    "cublasGetMathMode": "int {}(void* h, int* p) {{ *p = 0; return 0; }}",
    "cudnnBackendCreateDescriptor": "int {}(int t, void** p) {{ static long x[64]; *p = x; return 0; }}",
    "cudnnBackendGetAttribute": "int {}(void* d, int a, int t, long r, long* k, void* out) {{ if (k) *k = 1; if (out && t == 3) *(long*)out = 0; return 0; }}",
    # Layouts and types of tensors: CUDNN_ATTR_TENSOR_STRIDES is 903, _DATA_TYPE 901, CUDNN_DATA_BFLOAT16 9.
    "cudnnBackendSetAttribute": "int {}(void* d, int a, int t, long k, const void* x) {{ "
    "const long* strides = x; if (a == 903 && k == 4 && strides[1] == 1 && strides[3] > 1) fake_count(CHANNELS_LAST, 1); "
    "if (a == 901 && *(const int*)x == 9) fake_count(BF16_TENSORS, 1); return 0; }}",
    "cudnnGetVersion": 'unsigned long {}(void) {{ return fake_knob("cudnn", 91900); }}',
}


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def asked(library):
    """(symbol, version) of everything that a library needs from elsewhere."""
    for line in run("nm", "-D", "--undefined-only", str(library)).splitlines():
        name, _, version = line.split()[-1].partition("@")
        yield name, version.lstrip("@")


def library_of(name, version):
    if version.startswith("lib"):
        return version
    if version == "NVSHMEM" or name.startswith("nvshmem"):
        return "libnvshmem_host.so.3"
    return "libcusparseLt.so.0" if name.startswith("cusparseLt") else "libcufile.so.0" if name.startswith("cuFile") else None


def stub(name):
    if name in GIVING:
        return GIVING[name].format(name)
    if name.endswith("ErrorString"):
        return f'const char* {name}(void) {{ return "fake"; }}'
    counted = ""
    if re.search("gemm|gemv", name, re.I) or name == "cublasLtMatmul":
        counted = "fake_count(GEMMS, 1); "
    elif name == "cudnnBackendExecute" or re.match("cudnnConvolution(Forward|Backward)", name):
        counted = "fake_count(CONVOLUTIONS, 1); "
    return f"int {name}() {{ {counted}return 0; }}"


def compile_(source, out, soname, versions, without, *more):
    command = [os.environ.get("CC", "cc"), "-O1", "-std=gnu17", "-fPIC", "-shared", "-w", f"-Wl,-soname,{soname}", f"-I{HERE}"]
    kept_back = "".join(f"{symbol}; " for library, symbol in without if library == soname)
    if versions or kept_back:
        script = out.with_suffix(".map")
        local = f" local: {kept_back}" if kept_back else ""
        names = [f"{version} " for version in sorted(versions or ())] or [""]
        script.write_text("".join(f"{name}{{ global: *;{local} }};\n" for name in names))
        command.append(f"-Wl,--version-script={script}")
    run(*command, "-o", str(out), str(source), *more)


def link(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source.resolve(), target)


def build(torch, out, without):
    lib = torch / "lib"
    include = torch.parent / "nvidia/cu13/include"
    for needed in (lib / "libtorch_cuda.so", include / "cuda_runtime_api.h"):
        if not needed.exists():
            return f"no {needed}; `make libtorch` fetches it"
    stamp = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES) + repr((str(torch.resolve()), without)).encode()).hexdigest()
    if (out / "stamp").exists() and (out / "stamp").read_text() == stamp:
        return ""
    run("rm", "-rf", str(out))
    driver = out / "driver"
    driver.mkdir(parents=True)
    try:
        link(lib / "libtorch_cuda.so", out / "torch/lib/libtorch_cuda.so")
    except OSError as error:
        return f"{out} cannot have hard links to {lib}: {error.strerror}"
    for path in lib.iterdir():
        if path.is_file() and ".so" in path.name and path.name != "libtorch_cuda.so":
            link(path, out / "torch/lib" / path.name)
    package = out / "python/torch"
    package.mkdir(parents=True)
    for path in torch.iterdir():
        if path.name == "lib":
            (package / "lib").symlink_to(out / "torch/lib")
        elif path.suffix == ".so":
            link(path, package / path.name)
        else:
            (package / path.name).symlink_to(path.resolve())
    cuda = ("-L" + str(driver), "-l:libcuda.so.1")
    compile_(HERE / "driver.c", driver / "libcuda.so.1", "libcuda.so.1", None, without, "-lpthread")
    compile_(HERE / "nvml.c", driver / "libnvidia-ml.so.1", "libnvidia-ml.so.1", None, without, *cuda)
    needed, versions = {name: set() for name in FOLDERS}, {name: set() for name in FOLDERS}
    for asking in ASKING:
        if not (lib / asking).exists():
            continue
        for name, version in asked(lib / asking):
            of = library_of(name, version)
            if of in needed:
                needed[of].add(name)
                versions[of].update({version} - {""})
    nccl = {name for name, version in asked(lib / "libtorch_cuda.so") if name.startswith("nccl") and not version}
    for soname, folder in FOLDERS.items():
        target = out / folder / soname
        target.parent.mkdir(parents=True, exist_ok=True)
        written = (HERE / WRITTEN[soname]).read_text() if soname in WRITTEN else ""
        names = nccl if soname == "libnccl.so.2" else needed[soname]
        missing = sorted(name for name in names if not re.search(rf"\b{name}\(", written))
        text = '#include "fake.h"\n' + "\n".join(stub(name) for name in missing)
        rest = target.with_suffix(".c")
        rest.write_text(text)
        more = [str(HERE / WRITTEN[soname]), f"-I{include}"] if written else []
        compile_(rest, target, soname, versions[soname], without, *more, *cuda, "-ldl", "-lpthread")
    # NCCL is found as users find it who have it installed.
    link(out / "nvidia/nccl/lib/libnccl.so.2", driver / "libnccl.so.2")
    (out / "stamp").write_text(stamp)
    return ""


if __name__ == "__main__":
    # Tests run side by side; one builds.
    pathlib.Path(sys.argv[2]).parent.mkdir(parents=True, exist_ok=True)
    with open(sys.argv[2] + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        without = [tuple(name.split(":")) for name in sys.argv[3:]]
        print(build(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), without))
