//! Meaning of keys. Pure: what has to be asked of the daemon comes back as a request.

use super::model::{Asked, Input, SORTS, View};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use seekway_hostd::control::{LimitRequest, Request};
use std::num::NonZeroU32;

/// Longest line that can be typed.
const INPUT_MAX: usize = 500;

/// Consequence of a key.
#[derive(Clone, PartialEq, Debug)]
pub enum Action {
    /// Draw the view again; nothing is asked of the daemon.
    Draw,
    /// Ask this of the daemon.
    Ask(Request),
    Quit,
}

/// A key was pressed.
pub fn press(view: &mut View, key: KeyEvent) -> Action {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if matches!(key.code, KeyCode::Char('c' | 'd')) {
            Action::Quit
        } else {
            Action::Draw
        };
    }
    if let Some(input) = view.input.take() {
        return type_into(view, input, key.code);
    }
    if view.help {
        view.help = false;
        return Action::Draw;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
        KeyCode::Char('?' | 'h') => view.help = true,
        KeyCode::Char(' ') => view.paused = !view.paused,
        KeyCode::Char('s') => view.sort = (view.sort + 1) % SORTS.len(),
        KeyCode::Char('r') => view.reversed = !view.reversed,
        KeyCode::Down | KeyCode::Char('j') => view.move_selection(1),
        KeyCode::Up | KeyCode::Char('k') => view.move_selection(-1),
        KeyCode::PageDown => view.move_selection(10),
        KeyCode::PageUp => view.move_selection(-10),
        KeyCode::Home => view.move_selection(isize::MIN + 1),
        KeyCode::End => view.move_selection(isize::MAX),
        KeyCode::Char('w') => ask(view, Asked::Weight),
        KeyCode::Char('l') => ask(view, Asked::Limit),
        KeyCode::Char('p') => ask(view, Asked::Policy),
        _ => {}
    }
    Action::Draw
}

/// Begin to type a setting of the selected disk, from what it is now.
fn ask(view: &mut View, asked: Asked) {
    let Some((device, disk)) = view.selected_disk() else { return };
    let (of, text) = match asked {
        Asked::Weight => (&disk.name, disk.weight.to_string()),
        Asked::Limit => (&disk.name, disk.limits.clone()),
        Asked::Policy => (&device.name, device.policy.clone()),
    };
    view.input = Some(Input { asked, of: of.clone(), text });
    view.message.clear();
}

fn type_into(view: &mut View, mut input: Input, key: KeyCode) -> Action {
    match key {
        KeyCode::Esc => return Action::Draw,
        KeyCode::Enter => match request(&input) {
            Ok(request) => return Action::Ask(request),
            Err(text) => view.message = text,
        },
        KeyCode::Backspace => _ = input.text.pop(),
        KeyCode::Char(c) if !c.is_control() && input.text.len() < INPUT_MAX => input.text.push(c),
        _ => {}
    }
    view.input = Some(input);
    Action::Draw
}

/// Makes a request of a typed line.
fn request(input: &Input) -> Result<Request, String> {
    let (of, text) = (input.of.clone(), input.text.trim());
    Ok(match input.asked {
        Asked::Weight => {
            let weight = text.parse::<NonZeroU32>();
            let weight = weight.map_err(|_| format!("weight {text}: expected a number from 1"))?;
            Request::Weight { disk: of, weight }
        }
        Asked::Limit => {
            let limit = LimitRequest::disk(&of, text).map_err(|e| format!("limit {text}: {e}"))?;
            Request::Limit(Box::new(limit))
        }
        Asked::Policy => Request::Policy { policy: text.into(), device: Some(of) },
    })
}
