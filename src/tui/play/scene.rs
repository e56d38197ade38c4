//! Classic control as lines, from what the policy sees.

use super::raster::{Canvas, Point};
use crate::theme::{Glyphs, Role};
use ratatui::layout::Rect;

/// What an environment looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scene {
    /// A pole on a cart.
    CartPole,
    /// A pole with a motor.
    Pendulum,
    /// Two links with a motor between them.
    Acrobot,
    /// A car in a valley.
    MountainCar,
}

impl Scene {
    /// Of an environment, if it is known.
    pub fn of(env_id: &str) -> Option<Scene> {
        let name = env_id.rsplit('/').next()?.split("-v").next()?;
        match name {
            "CartPole" => Some(Scene::CartPole),
            "Pendulum" => Some(Scene::Pendulum),
            "Acrobot" => Some(Scene::Acrobot),
            "MountainCar" | "MountainCarContinuous" => Some(Scene::MountainCar),
            _ => None,
        }
    }

    /// The part of the world that is seen.
    fn window(self) -> (Point, Point) {
        match self {
            Scene::CartPole => ((-2.6, -0.35), (2.6, 1.25)),
            Scene::Pendulum => ((-1.2, -1.2), (1.2, 1.2)),
            Scene::Acrobot => ((-2.2, -2.1), (2.2, 2.1)),
            Scene::MountainCar => ((-1.25, 0.0), (0.65, 1.15)),
        }
    }

    /// Drawn into an area; `None` when the numbers are not of this environment.
    pub fn draw(self, seen: &[f32], action: &[f32], area: Rect, glyphs: Glyphs) -> Option<Canvas> {
        let (low, high) = self.window();
        self.paint(seen, action, Canvas::for_cells(area, glyphs, low, high))
    }

    /// Drawn into so many pixels.
    pub fn pixels(self, seen: &[f32], action: &[f32], width: usize, height: usize) -> Option<Canvas> {
        let (low, high) = self.window();
        self.paint(seen, action, Canvas::new(width, height, low, high))
    }

    fn paint(self, seen: &[f32], action: &[f32], mut canvas: Canvas) -> Option<Canvas> {
        let number = |i: usize| seen.get(i).map(|number| f64::from(*number));
        let force = action.first().map(|action| f64::from(*action));
        match self {
            Scene::CartPole => cart_pole(&mut canvas, number(0)?, number(2)?, force),
            Scene::Pendulum => pendulum(&mut canvas, number(0)?, number(1)?, force),
            Scene::Acrobot => {
                acrobot(&mut canvas, (number(0)?, number(1)?), (number(2)?, number(3)?), force);
            }
            Scene::MountainCar => mountain_car(&mut canvas, number(0)?),
        }
        Some(canvas)
    }
}

fn cart_pole(canvas: &mut Canvas, x: f64, theta: f64, force: Option<f64>) {
    canvas.line((-2.6, 0.0), (2.6, 0.0), 0.0, Role::Dim);
    for limit in [-2.4, 2.4] {
        canvas.line((limit, -0.12), (limit, 0.12), 0.0, Role::Warn);
    }
    canvas.bar((x, 0.0), 0.5, 0.22, Role::Text);
    canvas.line((x, 0.11), (x + theta.sin(), 0.11 + theta.cos()), 0.07, Role::Accent);
    canvas.disc((x, 0.11), 0.05, Role::Good);
    if let Some(force) = force {
        let side = if force > 0.5 { 1.0 } else { -1.0 };
        let (from, to) = (x + side * 0.32, x + side * 0.62);
        canvas.line((from, 0.0), (to, 0.0), 0.0, Role::Good);
        canvas.line((to, 0.0), (to - side * 0.1, 0.09), 0.0, Role::Good);
        canvas.line((to, 0.0), (to - side * 0.1, -0.09), 0.0, Role::Good);
    }
}

fn pendulum(canvas: &mut Canvas, cos: f64, sin: f64, torque: Option<f64>) {
    // The angle counts from upright, to the left.
    let tip = (-sin, cos);
    canvas.line((0.0, 1.0), (0.0, 1.15), 0.0, Role::Dim);
    canvas.line((0.0, 0.0), tip, 0.12, Role::Accent);
    canvas.disc(tip, 0.09, Role::Accent);
    canvas.disc((0.0, 0.0), 0.06, Role::Text);
    let Some(torque) = torque else { return };
    // An arc around the axis, as long as the motor is strong.
    let turn = torque.clamp(-2.0, 2.0) * 0.6;
    let arc = |t: f64| {
        let angle = std::f64::consts::FRAC_PI_2 + turn * t;
        (0.3 * angle.cos(), 0.3 * angle.sin())
    };
    (0..12).for_each(|i| {
        let (from, to) = (arc(f64::from(i) / 12.0), arc(f64::from(i + 1) / 12.0));
        canvas.line(from, to, 0.0, Role::Good);
    });
}

fn acrobot(canvas: &mut Canvas, (cos1, sin1): Point, (cos2, sin2): Point, torque: Option<f64>) {
    // Angles count from hanging down; the second from the first.
    let elbow = (sin1, -cos1);
    let (cos, sin) = (cos1 * cos2 - sin1 * sin2, sin1 * cos2 + cos1 * sin2);
    let tip = (elbow.0 + sin, elbow.1 - cos);
    canvas.line((-2.2, 1.0), (2.2, 1.0), 0.0, Role::Dim);
    canvas.line((0.0, 0.0), elbow, 0.12, Role::Text);
    canvas.line(elbow, tip, 0.12, Role::Accent);
    canvas.disc((0.0, 0.0), 0.09, Role::Dim);
    let pushes = torque.is_some_and(|torque| (torque - 1.0).abs() > 0.5);
    canvas.disc(elbow, 0.12, if pushes { Role::Good } else { Role::Dim });
}

fn mountain_car(canvas: &mut Canvas, x: f64) {
    let height = |x: f64| (3.0 * x).sin() * 0.45 + 0.55;
    let (left, right) = (-1.2, 0.6);
    for i in 0..120 {
        let at = |i: i32| left + (right - left) * f64::from(i) / 120.0;
        canvas.line((at(i), height(at(i))), (at(i + 1), height(at(i + 1))), 0.0, Role::Dim);
    }
    let goal = 0.5;
    canvas.line((goal, height(goal)), (goal, height(goal) + 0.14), 0.0, Role::Warn);
    canvas.bar((goal + 0.04, height(goal) + 0.12), 0.07, 0.04, Role::Warn);
    // The car stands on the slope.
    let slope = (3.0 * x).cos() * 1.35;
    let angle = slope.atan();
    let (cos, sin) = (angle.cos(), angle.sin());
    let above = |along: f64, up: f64| (x + along * cos - up * sin, height(x) + along * sin + up * cos);
    canvas.line(above(-0.06, 0.055), above(0.06, 0.055), 0.05, Role::Accent);
    for wheel in [-0.04, 0.04] {
        canvas.disc(above(wheel, 0.02), 0.018, Role::Text);
    }
}

/// Names of discrete actions, where they are known.
pub fn action_names(env_id: &str, actions: usize) -> &'static [&'static str] {
    let name = env_id.rsplit('/').next().unwrap_or(env_id);
    let names: &[&str] = match name {
        _ if name.starts_with("CartPole") => &["left", "right"],
        _ if name.starts_with("Acrobot") => &["torque -1", "none", "torque +1"],
        _ if name.starts_with("MountainCar") => &["left", "none", "right"],
        _ if name.starts_with("LunarLander") => &["none", "left engine", "main engine", "right engine"],
        _ if name.starts_with("Pong") => &["none", "fire", "right", "left", "right+fire", "left+fire"],
        _ if name.starts_with("Breakout") => &["none", "fire", "right", "left"],
        _ => &[],
    };
    if names.len() == actions { names } else { &[] }
}
