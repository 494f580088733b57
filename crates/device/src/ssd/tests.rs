use super::*;
use crate::tests::{metric, read, request, serve_one};

/// Four dies on two channels, pages and units of 4 KiB, blocks of 16 pages.
fn spec() -> SsdSpec {
    SsdSpec {
        capacity: 8 * 512,
        channels: 2,
        layout: Layout {
            dies: 4,
            blocks: 14,
            block_pages: 16,
            planes: 1,
            page_units: 1,
            units: 512,
            map_units: 0,
            filled_units: 0,
            start: Start::InOrder,
        },
        unit_sectors: 8,
        flash: FlashTimes {
            read_ns: 50_000,
            program_ns: 600_000,
            program_spread_ns: 0,
            seed: 0,
            erase_ns: 2_000_000,
            channel_mb_s: 100,
            overlap: true,
        },
        host_mb_s: 400,
        full_duplex: false,
        read_command_ns: 1_000,
        write_command_ns: 2_000,
        read_latency_ns: 10_000,
        write_latency_ns: 5_000,
        buffer_units: 8,
        queue_depth: 32,
        separate_paths: false,
        power_loss_protection: false,
        write_place: WritePlace::Idlest,
        rules: ReadRules::default(),
        map: None,
    }
}

/// 4 KiB over a channel and over the link.
const CHANNEL: u64 = 40_960;
const LINK: u64 = 10_240;

fn write(id: u32, lba: u64, sectors: u64) -> Request {
    request(id, Op::Write, lba, sectors)
}

/// Submits all at 0; when each was done, by its id.
fn all(ssd: &mut Ssd, commands: &[Request]) -> Vec<u64> {
    let mut done = vec![0; commands.len()];
    for command in commands {
        ssd.submit(Instant::ZERO, command);
    }
    while let Some(at) = ssd.next_completion() {
        let id = ssd.pop_completed(at).unwrap();
        done[id.slot()] = at.as_nanos();
    }
    done
}

#[test]
fn a_page_read_is_command_latency_array_channel_and_link() {
    let mut ssd = Ssd::new(spec());
    let expected = 1_000 + 10_000 + 50_000 + CHANNEL + LINK;
    assert_eq!(serve_one(&mut ssd, 0, &read(0, 0, 8)), expected);
    // Of a part of a page, that part is transferred.
    let mut ssd = Ssd::new(spec());
    let expected = 1_000 + 10_000 + 50_000 + CHANNEL / 8 + LINK / 8;
    assert_eq!(serve_one(&mut ssd, 0, &read(0, 11, 1)), expected);
}

#[test]
fn a_buffered_write_is_command_link_and_answer() {
    let mut ssd = Ssd::new(spec());
    let t = serve_one(&mut ssd, 0, &write(0, 0, 8));
    assert_eq!(t, 2_000 + LINK + 5_000);
    // Read back before it is in the flash: from the buffer.
    let done = serve_one(&mut ssd, t, &read(0, 0, 8));
    assert_eq!((done - t, metric(&ssd, "buffer_hits")), (1_000 + 10_000 + LINK, 1.0));
    // And after: from the flash.
    let t = 10_000_000;
    assert_eq!(serve_one(&mut ssd, t, &read(0, 0, 8)) - t, 61_000 + CHANNEL + LINK);
    assert_eq!((metric(&ssd, "flash_reads"), metric(&ssd, "write_amplification")), (1.0, 1.0));
}

#[test]
fn dies_overlap_and_channels_contend() {
    // Pages 0 to 3 are on dies 0 to 3, which hang on channels 0, 1, 0, 1.
    let first = 1_000 + 10_000 + 50_000 + CHANNEL + LINK;
    let mut ssd = Ssd::new(spec());
    // Two channels: they share only the controller and the link.
    let done = all(&mut ssd, &[read(0, 0, 8), read(1, 8, 8)]);
    assert_eq!(done, [first, first + LINK]);
    // One channel, two dies: the second transfer waits for the first.
    let mut ssd = Ssd::new(spec());
    let done = all(&mut ssd, &[read(0, 0, 8), read(1, 16, 8)]);
    assert_eq!(done, [first, first + CHANNEL]);
    // One die: the array reads the next page while the register sends the last.
    let mut ssd = Ssd::new(spec());
    let done = all(&mut ssd, &[read(0, 0, 8), read(1, 32, 8)]);
    assert_eq!(done, [first, first + 50_000]);
    // All four at once take less than two on one channel and one more transfer.
    let mut ssd = Ssd::new(spec());
    assert_eq!(serve_one(&mut ssd, 0, &read(0, 0, 32)), first + CHANNEL + LINK);
}

#[test]
fn a_full_buffer_holds_writes_up_at_the_pace_of_the_dies() {
    let mut ssd = Ssd::new(spec());
    let commands: Vec<Request> = (0..32).map(|i| write(i, 8 * u64::from(i), 8)).collect();
    let done = all(&mut ssd, &commands);
    // Eight fit; they take the link's time.
    assert_eq!(done[7], 2_000 + 8 * LINK + 5_000);
    // The ninth waits for the first program: it was in the buffer after one
    // transfer, then channel and array.
    let programmed = 2_000 + LINK + CHANNEL + 600_000;
    assert_eq!(done[8], programmed + LINK + 5_000);
    assert!(metric(&ssd, "stalls") >= 20.0);
    // In the long run four dies program a page in 600 µs.
    let (mut t, mut last) = (0, 0);
    for i in 0..400_u64 {
        t = serve_one(&mut ssd, t, &write(0, 8 * (i % 512), 8));
        last = if i == 199 { t } else { last };
    }
    let each = (t - last) as f64 / 200.0;
    assert!((each / 150_000.0 - 1.0).abs() < 0.02, "{each} ns a write");
}

#[test]
fn reads_go_before_programs_that_have_not_begun() {
    let mut ssd = Ssd::new(spec());
    // Eight pages in the buffer, two for each die: the first four begin at once.
    let t = serve_one(&mut ssd, 0, &write(0, 64, 64));
    let t = t + 1_000;
    let done = serve_one(&mut ssd, t, &read(0, 0, 8));
    // One program (on die 0 from the first transfer on), not two.
    assert!(done < 2_000 + 8 * LINK + CHANNEL + 600_000 + 50_000 + CHANNEL + LINK, "{done}");
    assert!(done > 600_000);
}

#[test]
fn a_unit_written_in_part_is_completed_in_the_buffer_or_from_the_flash() {
    let halves = |between_ns: u64, filled_units: u32| {
        let layout = Layout { filled_units, ..spec().layout };
        let mut ssd = Ssd::new(SsdSpec { layout, ..spec() });
        let t = serve_one(&mut ssd, 0, &write(0, 0, 4));
        serve_one(&mut ssd, t + between_ns, &write(0, 4, 4));
        let t = serve_one(&mut ssd, 50_000_000, &request(0, Op::Flush, 0, 1));
        serve_one(&mut ssd, t, &read(0, 0, 8));
        (metric(&ssd, "rest_reads"), metric(&ssd, "units_programmed"), metric(&ssd, "write_hits"))
    };
    assert_eq!(halves(0, 512), (0.0, 1.0, 1.0));
    assert_eq!(halves(20_000_000, 512), (0.0, 1.0, 1.0));
    let layout = Layout { filled_units: 512, ..spec().layout };
    let mut ssd = Ssd::new(SsdSpec { layout, ..spec() });
    let t = serve_one(&mut ssd, 0, &write(0, 0, 4));
    serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1));
    assert_eq!(metric(&ssd, "rest_reads"), 1.0);
    // Where nothing was ever written there is nothing to read.
    let mut ssd = Ssd::new(spec());
    let t = serve_one(&mut ssd, 0, &write(0, 0, 4));
    serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1));
    assert_eq!((metric(&ssd, "rest_reads"), metric(&ssd, "units_programmed")), (0.0, 1.0));
}

#[test]
fn a_flush_waits_for_the_flash_and_a_discard_spares_it() {
    let mut ssd = Ssd::new(spec());
    let t = serve_one(&mut ssd, 0, &write(0, 0, 8));
    assert_eq!(t, 2_000 + LINK + 5_000);
    // The program began when the data was there.
    let done = serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1));
    assert_eq!(done, 2_000 + LINK + CHANNEL + 600_000 + 5_000);
    let t = serve_one(&mut ssd, done, &request(0, Op::Discard, 0, 4_096));
    assert_eq!(t - done, 2_000 + 5_000);
    // Units without data are answered without the flash.
    assert_eq!(serve_one(&mut ssd, t, &read(0, 0, 8)) - t, 11_000 + LINK);
    assert_eq!(metric(&ssd, "flash_reads"), 0.0);
}

#[test]
fn garbage_collection_takes_the_dies_time() {
    let layout = Layout { filled_units: 512, ..spec().layout };
    let mut ssd = Ssd::new(SsdSpec { layout, ..spec() });
    let (mut t, mut state) = (0, 1_u64);
    let mut before = [0.0; 4];
    let names = ["units_programmed", "gc_pages", "erases", "gc_units"];
    for i in 0..8_000 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if i == 4_000 {
            before = names.map(|name| metric(&ssd, name));
            before[3] = t as f64;
        }
        t = serve_one(&mut ssd, t, &write(0, 8 * ((state >> 33) % 512), 8));
    }
    let amplification = metric(&ssd, "write_amplification");
    assert!(amplification > 1.3, "{amplification}");
    // The four dies' work in that time, with the transfers of collection.
    let [programs, pages, erases] = [0, 1, 2].map(|i| metric(&ssd, names[i]) - before[i]);
    let busy = programs * 600_000.0 + pages * (50_000.0 + CHANNEL as f64) + erases * 2_000_000.0;
    let share = busy / 4.0 / (t as f64 - before[3]);
    assert!((0.95..1.01).contains(&share), "{share} at amplification {amplification}");
}

#[test]
fn a_link_for_each_way_lets_reads_and_writes_pass() {
    let time = |full_duplex| {
        let mut ssd = Ssd::new(SsdSpec { full_duplex, host_mb_s: 10, ..spec() });
        all(&mut ssd, &[write(0, 512, 8), read(1, 0, 8)])
    };
    let (both, one) = (time(true), time(false));
    assert_eq!(both[0], one[0]);
    // 409.6 µs a transfer: the read's begins behind the write's.
    assert_eq!(one[1] - both[1], 2_000 + 409_600 - (2_000 + 11_000 + 50_000 + CHANNEL));
}

#[test]
fn a_read_does_not_wait_for_write_commands_on_a_path_of_its_own() {
    let done = |separate_paths| {
        let write_command_ns = 100_000;
        let spec = SsdSpec { separate_paths, write_command_ns, full_duplex: true, ..spec() };
        let mut commands = vec![write(0, 512, 8); 7];
        commands.push(read(0, 0, 8));
        let commands: Vec<Request> = (0..)
            .zip(commands)
            .map(|(id, c)| request(id, c.op, c.extent.start().get(), 8))
            .collect();
        all(&mut Ssd::new(spec), &commands)[7]
    };
    let alone = 1_000 + 10_000 + 50_000 + CHANNEL + LINK;
    assert_eq!((done(true), done(false)), (alone, 700_000 + alone));
}

#[test]
fn a_die_without_overlap_does_one_thing_at_a_time() {
    let flash = FlashTimes { overlap: false, ..spec().flash };
    let first = 1_000 + 10_000 + 50_000 + CHANNEL + LINK;
    // Two reads of one die: the second begins when the first is out.
    let mut ssd = Ssd::new(SsdSpec { flash, ..spec() });
    let done = all(&mut ssd, &[read(0, 0, 8), read(1, 32, 8)]);
    assert_eq!(done, [first, first + 50_000 + CHANNEL]);
    // A program's page is sent when the die is free: this delays each of 400 writes.
    let time = |overlap| {
        let flash = FlashTimes { overlap, ..spec().flash };
        let mut ssd = Ssd::new(SsdSpec { flash, ..spec() });
        let t = (0..400_u64).fold(0, |t, i| serve_one(&mut ssd, t, &write(0, 8 * i, 8)));
        serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1))
    };
    let each = (time(false) - time(true)) as f64 / 100.0;
    assert!((each / CHANNEL as f64 - 1.0).abs() < 0.05, "{each}");
}

#[test]
fn a_page_goes_home_where_addresses_decide() {
    let time = |write_place, lbas: [u64; 4]| {
        let mut ssd = Ssd::new(SsdSpec { write_place, ..spec() });
        let t = lbas.iter().fold(0, |t, &lba| serve_one(&mut ssd, t, &write(0, lba, 8)));
        serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1))
    };
    // Four pages whose addresses all name die 0: one program after the other.
    let [home, idlest] = [WritePlace::Home, WritePlace::Idlest]
        .map(|write_place| time(write_place, [0, 32, 64, 96]));
    assert!(home > 2_400_000, "{home}");
    assert!(idlest < 800_000, "{idlest}");
    // One for each die: it is the same.
    let [home, idlest] =
        [WritePlace::Home, WritePlace::Idlest].map(|place| time(place, [0, 8, 16, 24]));
    assert_eq!(home, idlest);
}

#[test]
fn two_planes_program_two_pages_in_the_time_of_one() {
    let with = |planes| {
        let layout = Layout { planes, ..spec().layout };
        Ssd::new(SsdSpec { layout, buffer_units: 32, ..spec() })
    };
    let each = |planes| {
        let (mut ssd, mut t, mut begin) = (with(planes), 0, 0);
        for i in 0..500_u64 {
            t = serve_one(&mut ssd, t, &write(0, 8 * i, 8));
            begin = if i == 99 { t } else { begin };
        }
        (t - begin) as f64 / 400.0
    };
    let (one, two) = (each(1), each(2));
    // To a program more or less of the 100 that each die does.
    assert!((one / two / 2.0 - 1.0).abs() < 0.03, "{one} ns a page, of two planes {two}");
    // A page alone takes as long.
    let alone = |planes| {
        let mut ssd = with(planes);
        let t = serve_one(&mut ssd, 0, &write(0, 0, 8));
        serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1))
    };
    assert_eq!(alone(1), alone(2));
}

#[test]
fn reads_of_one_row_of_planes_that_wait_together_are_one_read_of_the_array() {
    let done = |planes| {
        let layout = Layout { planes, ..spec().layout };
        let mut ssd = Ssd::new(SsdSpec { layout, ..spec() });
        // All on die 0: a page of the first row, and both of the second.
        all(&mut ssd, &[read(0, 0, 8), read(1, 64, 8), read(2, 96, 8)])
    };
    let first = 1_000 + 10_000 + 50_000 + CHANNEL + LINK;
    assert_eq!(done(1), [first, first + 50_000, first + 100_000]);
    assert_eq!(done(2), [first, first + 50_000, first + 50_000 + CHANNEL]);
}

/// Reads go first, and a program may be suspended `times` times.
fn suspending(times: u32) -> SsdSpec {
    let program = Suspension { times, stop_ns: 20_000, resume_ns: 30_000, keep_ns: 10_000 };
    let rules = ReadRules { first_below_units: u32::MAX, program, ..ReadRules::default() };
    SsdSpec { rules, ..spec() }
}

/// When the program of the first write, at 0 to die 0, ends if nothing suspends it.
const PROGRAMMED: u64 = 2_000 + LINK + CHANNEL + 600_000;
/// From the array's read to the host.
const READ: u64 = 50_000 + CHANNEL + LINK;

#[test]
fn a_read_suspends_a_program_and_pays_for_it() {
    let mut ssd = Ssd::new(suspending(2));
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    let done = serve_one(&mut ssd, 200_000, &read(0, 32, 8));
    assert_eq!(done, 200_000 + 1_000 + 10_000 + 20_000 + READ);
    assert_eq!(metric(&ssd, "program_suspensions"), 1.0);
    // The program stood still while the die stopped and read, and pays for going on.
    let flushed = serve_one(&mut ssd, done, &request(0, Op::Flush, 0, 1));
    assert_eq!(flushed, PROGRAMMED + 20_000 + 50_000 + 30_000 + 5_000);
}

#[test]
fn a_flush_of_a_drive_that_survives_a_loss_of_power_is_answered_at_once() {
    let flushed = |power_loss_protection| {
        let mut ssd = Ssd::new(SsdSpec { power_loss_protection, ..spec() });
        let t = serve_one(&mut ssd, 0, &write(0, 0, 8));
        serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1)) - t
    };
    assert_eq!(flushed(true), 2_000 + 5_000);
    assert!(flushed(false) > 600_000, "a program takes that time");
}

#[test]
fn a_program_is_suspended_so_often_and_no_more() {
    let mut ssd = Ssd::new(suspending(2));
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    for at in [200_000, 300_000] {
        let done = serve_one(&mut ssd, at, &read(0, 32, 8));
        assert_eq!(done, at + 11_000 + 20_000 + READ);
    }
    let done = serve_one(&mut ssd, 400_000, &read(0, 32, 8));
    assert_eq!(done, PROGRAMMED + 2 * (20_000 + 50_000 + 30_000) + READ);
    assert_eq!(metric(&ssd, "program_suspensions"), 2.0);
}

#[test]
fn reads_that_come_before_it_goes_on_suspend_nothing() {
    let mut ssd = Ssd::new(suspending(1));
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    let now = Instant::from_nanos(200_000);
    ssd.submit(now, &read(0, 32, 8));
    ssd.submit(now, &read(1, 64, 8));
    let mut done = Vec::new();
    while let Some(at) = ssd.next_completion() {
        done.push((ssd.pop_completed(at).unwrap().slot(), at.as_nanos()));
    }
    let first = 200_000 + 11_000 + 20_000 + READ;
    assert_eq!(done, [(0, first), (1, first + 50_000)]);
    assert_eq!(metric(&ssd, "program_suspensions"), 1.0);
}

#[test]
fn what_is_nearly_done_is_not_suspended_and_what_has_gone_on_runs_a_while() {
    let mut ssd = Ssd::new(suspending(9));
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    let done = serve_one(&mut ssd, PROGRAMMED - 11_000 - 9_000, &read(0, 32, 8));
    assert_eq!(done, PROGRAMMED + READ);
    let mut spec = suspending(9);
    spec.rules.resume_min_ns = 150_000;
    let mut ssd = Ssd::new(spec);
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    let resumed = serve_one(&mut ssd, 200_000, &read(0, 32, 8)) - CHANNEL - LINK;
    let done = serve_one(&mut ssd, 300_000, &read(0, 32, 8));
    assert_eq!(done, resumed + 150_000 + 20_000 + READ);
}

#[test]
fn reads_go_first_while_the_buffer_is_below_its_mark() {
    let done = |first_below_units, pages: u64| {
        let rules = ReadRules { first_below_units, ..ReadRules::default() };
        let write_place = WritePlace::Home;
        let mut ssd = Ssd::new(SsdSpec { rules, write_place, ..spec() });
        // One program behind the other on die 0.
        for page in 0..pages {
            ssd.submit(Instant::ZERO, &write(0, 32 * page, 8));
        }
        while ssd.next_completion().is_some_and(|at| at.as_nanos() < 200_000) {
            ssd.pop_completed(Instant::from_nanos(200_000));
        }
        serve_one(&mut ssd, 200_000, &read(9, 32 * 8, 8))
    };
    // Below half of eight units it waits for the program under way, otherwise for all.
    assert_eq!(done(4, 3), PROGRAMMED + READ);
    assert_eq!(done(4, 5), PROGRAMMED + 4 * 600_000 + READ);
    assert_eq!(done(u32::MAX, 5), PROGRAMMED + READ);
}

#[test]
fn a_write_that_waits_for_room_is_done_when_its_room_is_there() {
    let mut ssd = Ssd::new(suspending(2));
    for i in 0..9 {
        ssd.submit(Instant::ZERO, &write(i, 8 * u64::from(i), 8));
    }
    let now = Instant::from_nanos(200_000);
    while ssd.pop_completed(now).is_some() {}
    let ninth = PROGRAMMED + LINK + 5_000;
    assert_eq!(ssd.next_completion(), Some(Instant::from_nanos(ninth)));
    // It got the room of the program that this read suspends.
    ssd.submit(now, &read(9, 32 * 16, 8));
    let read_done = Instant::from_nanos(200_000 + 11_000 + 20_000 + READ);
    assert_eq!(ssd.pop_completed(read_done), Some(RequestId::new(9)));
    let moved = Instant::from_nanos(ninth + 20_000 + 50_000 + 30_000);
    assert_eq!(ssd.next_completion(), Some(moved));
    assert_eq!(ssd.pop_completed(Instant::from_nanos(ninth)), None);
    assert_eq!(ssd.pop_completed(moved), Some(RequestId::new(8)));
}

#[test]
fn a_flush_waits_for_suspended_programs() {
    let mut ssd = Ssd::new(suspending(2));
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    ssd.submit(Instant::from_nanos(100_000), &request(1, Op::Flush, 0, 1));
    assert_eq!(ssd.next_completion(), Some(Instant::from_nanos(PROGRAMMED + 5_000)));
    ssd.submit(Instant::from_nanos(200_000), &read(2, 32, 8));
    let read_done = ssd.next_completion().unwrap();
    assert_eq!(ssd.pop_completed(read_done), Some(RequestId::new(2)));
    let moved = Instant::from_nanos(PROGRAMMED + 100_000 + 5_000);
    assert_eq!(ssd.next_completion(), Some(moved));
}

#[test]
fn what_is_programmed_longer_is_in_the_buffer_longer() {
    let mut ssd = Ssd::new(suspending(2));
    serve_one(&mut ssd, 0, &write(0, 0, 8));
    serve_one(&mut ssd, 200_000, &read(0, 32, 8));
    // Its program would have ended by now: the page that was written is still in the buffer.
    let at = PROGRAMMED + 50_000;
    assert_eq!(serve_one(&mut ssd, at, &read(0, 0, 8)), at + 11_000 + LINK);
    assert_eq!(metric(&ssd, "buffer_hits"), 1.0);
}

/// A map of eight pages of 64 entries, `cached_pages` of which are in memory.
fn mapped(cached_pages: u32) -> SsdSpec {
    let layout = Layout { units: 520, map_units: 8, ..spec().layout };
    SsdSpec { layout, map: Some(MapSpec { entries: 64, cached_pages }), ..spec() }
}

#[test]
fn a_short_map_is_read_before_the_data() {
    let mut ssd = Ssd::new(mapped(1));
    let t = serve_one(&mut ssd, 0, &read(0, 0, 8));
    assert_eq!(t, 11_000 + 50_000 + CHANNEL + READ);
    // The next unit's entry came along.
    let hit = serve_one(&mut ssd, t, &read(0, 8, 8));
    assert_eq!(hit - t, 11_000 + READ);
    // Another page replaces it, unchanged: nothing is written.
    let miss = serve_one(&mut ssd, hit, &read(0, 8 * 64, 8));
    assert_eq!(miss - hit, 11_000 + 50_000 + CHANNEL + READ);
    let figures = ["map_lookups", "map_misses", "map_writes"].map(|name| metric(&ssd, name));
    assert_eq!(figures, [3.0, 2.0, 0.0]);
    assert!(metric(&Ssd::new(spec()), "map_lookups").is_nan());
}

#[test]
fn a_changed_page_of_the_map_is_programmed_when_it_leaves_memory() {
    let units = |cached_pages| {
        let mut ssd = Ssd::new(mapped(cached_pages));
        let t = serve_one(&mut ssd, 0, &write(0, 0, 8));
        let t = serve_one(&mut ssd, t, &read(0, 8 * 64, 8));
        serve_one(&mut ssd, t, &request(0, Op::Flush, 0, 1));
        assert_eq!(metric(&ssd, "write_amplification"), metric(&ssd, "units_programmed"));
        (metric(&ssd, "map_writes"), metric(&ssd, "units_programmed"))
    };
    assert_eq!((units(1), units(2)), ((1.0, 2.0), (0.0, 1.0)));
}
