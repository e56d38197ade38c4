//! Copies rollouts, minibatches and replay batches to the networks' device.
//!
//! Owner: the learner. Copies to a GPU use pinned memory and a stream of their own, and the host does not
//! wait: a batch may be copied while the update before it still runs. `make gpu-test` checks that copies
//! arrive whole; their speed has not been measured.

use super::ffi;
use tch::{Device, TchError, Tensor};

/// A copy of a CPU tensor on `device`; the same tensor where that is the CPU.
pub fn upload(mut host: Tensor, device: Device) -> Result<Tensor, TchError> {
    match device {
        Device::Cuda(index) => ffi::upload(&mut host, index as i32)
            .map_err(|failure| TchError::Torch(format!("cannot copy to GPU {index}: {}", failure.text))),
        Device::Cpu => Ok(host),
        other => host.f_to_device(other),
    }
}

/// [`upload`] of numbers.
pub fn upload_slice<T: tch::kind::Element>(values: &[T], device: Device) -> Result<Tensor, TchError> {
    upload(Tensor::f_from_slice(values)?, device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_the_cpu_nothing_is_copied() {
        let host = Tensor::from_slice(&[1.0_f32, 2.0]);
        let at = host.data_ptr();
        assert_eq!(upload(host, Device::Cpu).unwrap().data_ptr(), at);
    }

    #[test]
    fn without_a_gpu_a_copy_is_an_error_that_names_it() {
        if tch::Cuda::is_available() {
            rankdeck_testkit::skip!("GPU: this host has one");
        }
        let error = upload_slice(&[1_i64], Device::Cuda(3)).unwrap_err();
        assert!(error.to_string().contains("GPU 3"), "{error}");
    }

    /// Many copies in flight while the GPU computes with earlier ones: each arrives whole, and what is
    /// computed uses it and no other.
    #[test]
    #[ignore = "GPU: needs one"]
    fn gpu_uploads_arrive_whole_and_in_time() {
        assert!(super::super::cuda::load_cuda().unwrap(), "no GPU here");
        let device = Device::Cuda(0);
        let sums: Vec<Tensor> = (0..64_i64)
            .map(|i| {
                let there = upload_slice(&vec![i as f32; 1 << 20], device).unwrap();
                (&there * 2.0).sum(tch::Kind::Double)
            })
            .collect();
        for (i, sum) in sums.iter().enumerate() {
            assert_eq!(sum.double_value(&[]), 2.0 * i as f64 * f64::from(1 << 20));
        }
    }
}
