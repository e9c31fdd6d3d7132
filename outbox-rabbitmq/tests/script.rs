//! Answers in an order that a real broker gives only now and then: a fake one that follows a script.

#![allow(clippy::unwrap_used)] // A test.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use common::{CONFIRMED, REFUSED, classes, messages, publish, publisher, to_queues};
use outbox_core::Message;

/// Time in which whoever decides too early has decided.
const A_WHILE: Duration = Duration::from_millis(200);

/// What the broker does once all messages have arrived; they are numbered from 1.
#[derive(Clone, Copy)]
enum Step {
    Return(usize),
    Ack(u64),
    AckUpTo(u64),
    NackUpTo(u64),
    Pause,
}
use Step::{Ack, AckUpTo, NackUpTo, Pause, Return};

/// The verdicts on four messages by this script.
async fn verdicts(script: &'static [Step]) -> Vec<bool> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut config = to_queues(&format!("amqp://{}/%2f", listener.local_addr().unwrap()));
    config.channels = 1;
    let sent = messages("q", 4);
    let ids: Vec<String> = sent.iter().map(|message: &Message| message.id().to_string()).collect();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        // Ends with the connection.
        let _ = serve(stream, &ids, script);
    });
    let found = classes(&publish(&publisher(&config), sent).await);
    assert!(found.iter().all(|class| *class == CONFIRMED || *class == REFUSED), "{found:?}");
    found.iter().map(|class| *class == CONFIRMED).collect()
}

/// B176: a message whose own return is still queued in the client is confirmed together with another one's.
#[tokio::test]
async fn a_confirm_with_anothers_return_says_nothing() {
    let script = &[Return(3), Return(1), Ack(1), Pause, Ack(2), Ack(4), Pause, Ack(3)];
    assert_eq!(verdicts(script).await, [false, true, false, true]);
}

/// B176: a return that came with the confirm of a message that was sent later.
#[tokio::test]
async fn a_return_with_a_later_message_is_found() {
    let script = &[Return(1), Ack(4), Pause, Ack(1), Ack(2), Ack(3)];
    assert_eq!(verdicts(script).await, [false, true, true, true]);
}

/// B191: an answer that covers several messages covers all of them.
#[tokio::test]
async fn an_answer_up_to_a_number_covers_all_before_it() {
    assert_eq!(verdicts(&[AckUpTo(2), Pause, NackUpTo(4)]).await, [true, true, false, false]);
    assert_eq!(verdicts(&[Return(2), Return(4), AckUpTo(4)]).await, [true, false, true, false]);
}

fn serve(mut stream: TcpStream, ids: &[String], script: &[Step]) -> std::io::Result<()> {
    stream.read_exact(&mut [0; 8])?;
    // connection.start: version 0-9, no properties, the mechanisms and locales that the client knows.
    let mut start = vec![0, 9, 0, 0, 0, 0];
    long(&mut start, "PLAIN AMQPLAIN");
    long(&mut start, "en_US");
    method(&mut stream, 0, 10, 10, &start)?;
    let mut arrived = 0;
    loop {
        let mut head = [0; 7];
        stream.read_exact(&mut head)?;
        let size = u32::from_be_bytes(head[3..].try_into().unwrap()) as usize;
        let mut body = vec![0; size + 1];
        stream.read_exact(&mut body)?;
        let channel = u16::from_be_bytes(head[1..3].try_into().unwrap());
        // A body's frame ends a message.
        if head[0] == 3 {
            arrived += 1;
            if arrived == ids.len() {
                follow(&mut stream, channel, ids, script)?;
            }
        }
        if head[0] != 1 {
            continue;
        }
        match (body[1], body[3]) {
            // start-ok: tune to 10 channels, frames of 131,072 bytes, no heartbeat.
            (10, 11) => method(&mut stream, 0, 10, 30, &[0, 10, 0, 2, 0, 0, 0, 0])?,
            // open: open-ok.
            (10, 40) => method(&mut stream, 0, 10, 41, &[0])?,
            // channel.open: open-ok.
            (20, 10) => method(&mut stream, channel, 20, 11, &[0, 0, 0, 0])?,
            // confirm.select: select-ok.
            (85, 10) => method(&mut stream, channel, 85, 11, &[])?,
            _ => {}
        }
    }
}

fn follow(
    stream: &mut TcpStream,
    channel: u16,
    ids: &[String],
    script: &[Step],
) -> std::io::Result<()> {
    let answer = |stream: &mut TcpStream, kind: u8, tag: u64, bits: u8| {
        let mut arguments = tag.to_be_bytes().to_vec();
        arguments.push(bits);
        method(stream, channel, 60, kind, &arguments)
    };
    for step in script {
        match *step {
            Ack(tag) => answer(stream, 80, tag, 0)?,
            AckUpTo(tag) => answer(stream, 80, tag, 1)?,
            NackUpTo(tag) => answer(stream, 120, tag, 1)?,
            Pause => std::thread::sleep(A_WHILE),
            Return(number) => {
                // Code 312, text, exchange, routing key.
                let mut arguments = 312u16.to_be_bytes().to_vec();
                for text in ["NO_ROUTE", "", "q"] {
                    short(&mut arguments, text);
                }
                method(stream, channel, 60, 50, &arguments)?;
                // Class, weight, a body of no bytes, the one property message_id.
                let mut header = vec![0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80];
                short(&mut header, &ids[number - 1]);
                frame(stream, 2, channel, &header)?;
            }
        }
    }
    Ok(())
}

fn method(
    stream: &mut TcpStream,
    channel: u16,
    class: u8,
    method: u8,
    arguments: &[u8],
) -> std::io::Result<()> {
    frame(stream, 1, channel, &[&[0, class, 0, method], arguments].concat())
}

fn frame(stream: &mut TcpStream, kind: u8, channel: u16, payload: &[u8]) -> std::io::Result<()> {
    let mut frame = vec![kind];
    frame.extend(channel.to_be_bytes());
    frame.extend((payload.len() as u32).to_be_bytes());
    frame.extend(payload);
    frame.push(0xce);
    stream.write_all(&frame)
}

fn short(buffer: &mut Vec<u8>, text: &str) {
    buffer.push(text.len() as u8);
    buffer.extend(text.as_bytes());
}

fn long(buffer: &mut Vec<u8>, text: &str) {
    buffer.extend((text.len() as u32).to_be_bytes());
    buffer.extend(text.as_bytes());
}
