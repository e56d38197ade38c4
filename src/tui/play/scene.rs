//! Draws classic control environments from their observations: lines and areas as pixels, and pixels as
//! characters.

use rankdeck_kit::{Glyphs, Role, Theme};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

/// An environment that can be drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnvScene {
    /// A pole on a cart.
    CartPole,
    /// A pole with a motor.
    Pendulum,
    /// Two links with a motor between them.
    Acrobot,
    /// A car in a valley.
    MountainCar,
}

impl EnvScene {
    /// Returns the scene of an environment, if it is known.
    pub fn from_env(env_id: &str) -> Option<EnvScene> {
        let name = env_id.rsplit('/').next()?.split("-v").next()?;
        match name {
            "CartPole" => Some(EnvScene::CartPole),
            "Pendulum" => Some(EnvScene::Pendulum),
            "Acrobot" => Some(EnvScene::Acrobot),
            "MountainCar" | "MountainCarContinuous" => Some(EnvScene::MountainCar),
            _ => None,
        }
    }

    /// Returns the visible part of the world.
    fn window(self) -> (WorldPoint, WorldPoint) {
        match self {
            EnvScene::CartPole => ((-2.6, -0.35), (2.6, 1.25)),
            EnvScene::Pendulum => ((-1.2, -1.2), (1.2, 1.2)),
            EnvScene::Acrobot => ((-2.2, -2.1), (2.2, 2.1)),
            EnvScene::MountainCar => ((-1.25, 0.0), (0.65, 1.15)),
        }
    }

    /// Draws into the cells of an area; `None` if the observation does not match the environment.
    pub fn draw(self, seen: &[f32], action: &[f32], area: Rect, glyphs: Glyphs) -> Option<SceneCanvas> {
        let (low, high) = self.window();
        self.paint(seen, action, SceneCanvas::for_cells(area, glyphs, low, high))
    }

    /// Draws into pixels.
    pub fn pixels(self, seen: &[f32], action: &[f32], width: usize, height: usize) -> Option<SceneCanvas> {
        let (low, high) = self.window();
        self.paint(seen, action, SceneCanvas::new(width, height, low, high))
    }

    fn paint(self, seen: &[f32], action: &[f32], mut canvas: SceneCanvas) -> Option<SceneCanvas> {
        let number = |i: usize| seen.get(i).map(|number| f64::from(*number));
        let force = action.first().map(|action| f64::from(*action));
        match self {
            EnvScene::CartPole => cart_pole(&mut canvas, number(0)?, number(2)?, force),
            EnvScene::Pendulum => pendulum(&mut canvas, number(0)?, number(1)?, force),
            EnvScene::Acrobot => {
                acrobot(&mut canvas, (number(0)?, number(1)?), (number(2)?, number(3)?), force);
            }
            EnvScene::MountainCar => mountain_car(&mut canvas, number(0)?),
        }
        Some(canvas)
    }
}

fn cart_pole(canvas: &mut SceneCanvas, x: f64, theta: f64, force: Option<f64>) {
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

fn pendulum(canvas: &mut SceneCanvas, cos: f64, sin: f64, torque: Option<f64>) {
    // The angle is counted from upright, to the left.
    let tip = (-sin, cos);
    canvas.line((0.0, 1.0), (0.0, 1.15), 0.0, Role::Dim);
    canvas.line((0.0, 0.0), tip, 0.12, Role::Accent);
    canvas.disc(tip, 0.09, Role::Accent);
    canvas.disc((0.0, 0.0), 0.06, Role::Text);
    let Some(torque) = torque else { return };
    // An arc around the axis, proportional to the torque.
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

fn acrobot(
    canvas: &mut SceneCanvas,
    (cos1, sin1): WorldPoint,
    (cos2, sin2): WorldPoint,
    torque: Option<f64>,
) {
    // Angles are counted from hanging down; the second one from the first.
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

fn mountain_car(canvas: &mut SceneCanvas, x: f64) {
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

/// Returns the names of discrete actions, if they are known.
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

/// Pixels, each with the role that was drawn last.
#[derive(Debug, Clone, PartialEq)]
pub struct Raster {
    pub width: usize,
    pub height: usize,
    ink: Vec<Option<Role>>,
}

/// A point: x to the right, y upwards.
pub type WorldPoint = (f64, f64);

/// Returns the pixels of a cell.
fn cell(glyphs: Glyphs) -> (usize, usize) {
    match glyphs {
        Glyphs::Braille => (2, 4),
        Glyphs::Block | Glyphs::Ascii => (1, 2),
    }
}

impl Raster {
    /// Creates an empty raster.
    pub fn new(width: usize, height: usize) -> Raster {
        Raster { width, height, ink: vec![None; width * height] }
    }

    /// Returns the role of a pixel.
    pub fn at(&self, x: usize, y: usize) -> Option<Role> {
        if x < self.width { self.ink.get(y * self.width + x).copied().flatten() } else { None }
    }

    fn set(&mut self, x: f64, y: f64, role: Role) {
        let (x, y) = (x.round(), y.round());
        if x >= 0.0 && y >= 0.0 && x < self.width as f64 && y < self.height as f64 {
            self.ink[y as usize * self.width + x as usize] = Some(role);
        }
    }
}

/// A window of the world on a raster; both axes have the same scale.
pub struct SceneCanvas {
    pub raster: Raster,
    scale: f64,
    left: f64,
    top: f64,
}

impl SceneCanvas {
    /// Fits the world from `low` to `high` into the raster, centered.
    pub fn new(width: usize, height: usize, low: WorldPoint, high: WorldPoint) -> SceneCanvas {
        let (wide, tall) = ((high.0 - low.0).max(1e-9), (high.1 - low.1).max(1e-9));
        let (across, down) = (width.max(1) as f64 - 1.0, height.max(1) as f64 - 1.0);
        let scale = (across / wide).min(down / tall);
        SceneCanvas {
            raster: Raster::new(width, height),
            scale,
            left: low.0 - (across / scale.max(1e-9) - wide) / 2.0,
            top: high.1 + (down / scale.max(1e-9) - tall) / 2.0,
        }
    }

    /// Fits the world into the cells of an area.
    pub fn for_cells(area: Rect, glyphs: Glyphs, low: WorldPoint, high: WorldPoint) -> SceneCanvas {
        let (across, down) = cell(glyphs);
        SceneCanvas::new(usize::from(area.width) * across, usize::from(area.height) * down, low, high)
    }

    fn place(&self, (x, y): WorldPoint) -> WorldPoint {
        ((x - self.left) * self.scale, (self.top - y) * self.scale)
    }

    /// Draws a line of a width in world units, at least one pixel wide.
    pub fn line(&mut self, from: WorldPoint, to: WorldPoint, width: f64, role: Role) {
        let ((x0, y0), (x1, y1)) = (self.place(from), self.place(to));
        let length = ((x1 - x0).powi(2) + (y1 - y0).powi(2)).sqrt();
        // Numbers of a broken environment may be far outside.
        if !length.is_finite() || length > 1e5 {
            return;
        }
        let half = (width * self.scale / 2.0).max(0.0);
        let steps = (length * 2.0).ceil().max(1.0);
        let across = (half * 2.0).ceil();
        let (nx, ny) = if length > 0.0 { ((y0 - y1) / length, (x1 - x0) / length) } else { (0.0, 0.0) };
        for i in 0..=steps as usize {
            let t = i as f64 / steps;
            let (x, y) = (x0 + (x1 - x0) * t, y0 + (y1 - y0) * t);
            for j in 0..=(across * 2.0) as usize {
                let off = if across > 0.0 { half * (j as f64 / across - 1.0) } else { 0.0 };
                self.raster.set(x + nx * off, y + ny * off, role);
            }
        }
    }

    /// Draws a filled circle.
    pub fn disc(&mut self, center: WorldPoint, radius: f64, role: Role) {
        let (x0, y0) = self.place(center);
        let pixels = (radius * self.scale).max(0.5);
        if !(x0.is_finite() && y0.is_finite()) || pixels > 1e4 {
            return;
        }
        let extent = pixels.ceil() as i64;
        for dy in -extent..=extent {
            for dx in -extent..=extent {
                let (dx, dy) = (dx as f64, dy as f64);
                if dx * dx + dy * dy <= pixels * pixels {
                    self.raster.set(x0 + dx, y0 + dy, role);
                }
            }
        }
    }

    /// Draws a filled rectangle around its center.
    pub fn bar(&mut self, center: WorldPoint, wide: f64, tall: f64, role: Role) {
        self.line((center.0 - wide / 2.0, center.1), (center.0 + wide / 2.0, center.1), tall, role);
    }
}

/// Draws pixels into cells.
pub fn draw_raster(theme: &Theme, buf: &mut Buffer, area: Rect, raster: &Raster) {
    let (across, down) = cell(theme.glyphs);
    for row in 0..usize::from(area.height) {
        for column in 0..usize::from(area.width) {
            let pixel = |dx: usize, dy: usize| raster.at(column * across + dx, row * down + dy);
            let Some((sign, role)) = sign(theme.glyphs, &pixel) else { continue };
            let place = (area.x + column as u16, area.y + row as u16);
            if let Some(cell) = buf.cell_mut(place) {
                cell.set_char(sign).set_style(theme.style(role));
            }
        }
    }
}

/// Returns the character of a cell and its most frequent role.
fn sign(glyphs: Glyphs, pixel: &dyn Fn(usize, usize) -> Option<Role>) -> Option<(char, Role)> {
    const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
    let (across, down) = cell(glyphs);
    let places = || (0..down).flat_map(move |y| (0..across).map(move |x| (x, y)));
    let inked: Vec<Role> = places().filter_map(|(x, y)| pixel(x, y)).collect();
    let role =
        inked.iter().copied().max_by_key(|role| inked.iter().filter(|other| *other == role).count())?;
    let halves = || (pixel(0, 0).is_some(), pixel(0, 1).is_some());
    let sign = match glyphs {
        Glyphs::Braille => {
            let bits =
                places().filter(|(x, y)| pixel(*x, *y).is_some()).map(|(x, y)| DOTS[y][x]).sum::<u32>();
            char::from_u32(0x2800 + bits)?
        }
        Glyphs::Block => match halves() {
            (true, true) => '█',
            (true, false) => '▀',
            _ => '▄',
        },
        Glyphs::Ascii => match halves() {
            (true, true) => '#',
            (true, false) => '\'',
            _ => '.',
        },
    };
    Some((sign, role))
}
