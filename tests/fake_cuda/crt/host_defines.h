// What the headers of the CUDA runtime need from the compiler's own header, which comes in another package.
#ifndef FAKE_HOST_DEFINES_H
#define FAKE_HOST_DEFINES_H
#define __host__
#define __device__
#define __global__
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define CUDA_CB
#endif
