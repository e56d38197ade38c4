//! Data parallelism inside one process (PyTorch's `DataParallel`): splits a batch over several devices and
//! gathers gradients on the first.
//!
//! Each call copies the parameters to every device, runs the forward pass there on that device's rows, and
//! concatenates the outputs on the first device, where the loss is computed. Both copies are differentiable,
//! so one backward pass leaves the sum of all devices' gradients in the first device's parameters. What
//! follows (DDP over ranks, clipping, optimizer) sees a model on one device.
//!
//! Invariants:
//! - DP-1: outputs and gradients equal those of one device up to the order of sums.
//! - DP-2: rows keep their order; the first devices get one row more where the batch does not divide; a batch
//!   smaller than the number of devices uses the first devices only.
//!
//! Work on different GPUs overlaps, because launches do not wait. On CPU "devices" the replicas run one after
//! the other: for tests, not for speed.

use tch::{Device, TchError, Tensor};

/// The devices of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataParallel {
    devices: Vec<Device>,
}

impl DataParallel {
    /// Splits over these devices; the first holds the parameters. `None` for fewer than two devices.
    pub fn new(devices: Vec<Device>) -> Option<DataParallel> {
        (devices.len() > 1).then_some(DataParallel { devices })
    }

    /// How many rows each device gets of a batch.
    fn shares(&self, rows: i64) -> impl Iterator<Item = (Device, i64, i64)> + '_ {
        let count = (self.devices.len() as i64).min(rows).max(1);
        self.devices.iter().take(count as usize).zip(0..).map(move |(device, i)| {
            let start = i * (rows / count) + i.min(rows % count);
            (*device, start, rows / count + i64::from(i < rows % count))
        })
    }

    /// `forward(parameters, rows)` on every device; its outputs together on the first, in the order of the
    /// rows of `inputs` (dimension 0 of each).
    pub fn forward<const N: usize>(
        &self,
        parameters: &[Tensor],
        inputs: [&Tensor; N],
        forward: impl Fn(&[Tensor], [Tensor; N]) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let rows = inputs.iter().find_map(|input| input.size().first().copied()).unwrap_or(0);
        let Some(first) = self.devices.first().copied() else {
            return forward(parameters, inputs.map(Tensor::shallow_clone));
        };
        let outputs = self
            .shares(rows)
            .enumerate()
            .map(|(i, (device, start, length))| {
                let mut parts = Vec::with_capacity(N);
                for input in inputs {
                    parts.push(input.f_narrow(0, start, length)?.f_to_device(device)?);
                }
                let mut parts = parts.into_iter();
                let parts = std::array::from_fn(|_| parts.next().unwrap_or_else(Tensor::new));
                if i == 0 {
                    return forward(parameters, parts);
                }
                let replica = parameters
                    .iter()
                    .map(|parameter| copy(parameter, device))
                    .collect::<Result<Vec<_>, _>>()?;
                forward(&replica, parts)?.f_to_device(first)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Tensor::f_cat(&outputs, 0)
    }
}

/// A differentiable copy, even on the same device.
fn copy(parameter: &Tensor, device: Device) -> Result<Tensor, TchError> {
    if parameter.device() == device { parameter.f_mul_scalar(1.0) } else { parameter.f_to_device(device) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::Kind;

    /// In double precision: another order of sums changes nothing that these tests could see.
    const KIND: (Kind, Device) = (Kind::Double, Device::Cpu);

    fn parameters() -> Vec<Tensor> {
        tch::manual_seed(3);
        [vec![16, 5], vec![16], vec![3, 16], vec![3]]
            .iter()
            .map(|shape| Tensor::randn(shape, KIND).set_requires_grad(true))
            .collect()
    }

    fn forward(parameters: &[Tensor], input: &Tensor) -> Result<Tensor, TchError> {
        let hidden = input.f_linear(&parameters[0], Some(&parameters[1]))?.f_tanh()?;
        hidden.f_linear(&parameters[2], Some(&parameters[3]))
    }

    fn gradients(parameters: &[Tensor], output: &Tensor) -> Vec<f64> {
        output.square().mean(Kind::Double).backward();
        parameters.iter().flat_map(|p| Vec::<f64>::try_from(p.grad().flatten(0, -1)).unwrap()).collect()
    }

    /// DP-1, DP-2; also where the batch does not divide and where there are more devices than rows.
    #[test]
    fn several_devices_equal_one() {
        for (rows, devices) in [(64, 2), (64, 4), (10, 3), (2, 4), (1, 2)] {
            let input = Tensor::randn([rows, 5], KIND);
            let one = parameters();
            let expected = forward(&one, &input).unwrap();
            let several = parameters();
            let dp = DataParallel::new(vec![Device::Cpu; devices]).unwrap();
            let got =
                dp.forward(&several, [&input], |parameters, [rows]| forward(parameters, &rows)).unwrap();
            assert_eq!(got.size(), [rows, 3]);
            assert!((&got - &expected).abs().max().double_value(&[]) < 1e-12);
            let (expected, got) = (gradients(&one, &expected), gradients(&several, &got));
            let far = expected.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(
                far < 1e-12 && expected.iter().any(|g| g.abs() > 1e-2),
                "{rows} rows on {devices}: {far}"
            );
        }
        assert!(DataParallel::new(vec![Device::Cpu]).is_none());
    }

    /// Every device gets its share.
    #[test]
    fn rows_are_shared_out_evenly() {
        let dp = DataParallel::new(vec![Device::Cpu; 3]).unwrap();
        let calls = std::cell::RefCell::new(Vec::new());
        let input = Tensor::arange(8, (Kind::Float, Device::Cpu)).view([8, 1]);
        let output = dp
            .forward(&[], [&input], |_, [rows]| {
                calls.borrow_mut().push(rows.size()[0]);
                Ok(rows)
            })
            .unwrap();
        assert_eq!((calls.into_inner(), output), (vec![3, 3, 2], input));
    }
}
