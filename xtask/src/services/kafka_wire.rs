//! The few requests of Kafka's protocol that need no client: is it there, create a topic, who may write to it.
//! By hand because the command-line programs take seconds, a Java start each.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::Result;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const API_VERSIONS: i16 = 18;
const CREATE_TOPICS: i16 = 19;
const CREATE_ACLS: i16 = 30;
const DELETE_ACLS: i16 = 31;
/// The last versions with plain length prefixes.
const API_VERSIONS_VERSION: i16 = 0;
const CREATE_TOPICS_VERSION: i16 = 4;
const ACLS_VERSION: i16 = 1;

/// Whether the broker serves requests.
pub(crate) fn answers(bootstrap: &str) -> bool {
    call(bootstrap, API_VERSIONS, API_VERSIONS_VERSION, &[])
        .is_ok_and(|answer| answer.starts_with(&[0, 0]))
}

pub(crate) fn create_topic(bootstrap: &str, name: &str, partitions: u32) -> Result<()> {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes()); // topics
    string(&mut body, name);
    body.extend(partitions.to_be_bytes());
    body.extend(1_i16.to_be_bytes()); // replicas
    body.extend(0_i32.to_be_bytes()); // no assignments
    body.extend(0_i32.to_be_bytes()); // no settings
    body.extend(10_000_i32.to_be_bytes()); // milliseconds
    body.push(0); // do it, not only validate
    let answer = call(bootstrap, CREATE_TOPICS, CREATE_TOPICS_VERSION, &body)?;
    // throttle time, number of topics, name; then the code and a text
    let code = answer.get(4 + 4 + 2 + name.len()..).and_then(|rest| rest.first_chunk());
    match code.map(|code| i16::from_be_bytes(*code)) {
        Some(0) => Ok(()),
        code => {
            let text = String::from_utf8_lossy(&answer[answer.len().min(12 + name.len())..]);
            Err(format!("kafka did not create the topic {name}: error {code:?} {text}").into())
        }
    }
}

/// A change of who may write to a topic.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acl {
    api: i16,
    permission: u8,
}

impl Acl {
    pub(crate) const ALLOW_WRITE: Self = Self { api: CREATE_ACLS, permission: 3 };
    pub(crate) const DENY_WRITE: Self = Self { api: CREATE_ACLS, permission: 2 };
    pub(crate) const NO_LONGER_DENY_WRITE: Self = Self { api: DELETE_ACLS, permission: 2 };
}

pub(crate) fn change_acl(bootstrap: &str, acl: Acl, topic: &str, user: &str) -> Result<()> {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes()); // entries
    body.push(2); // resource type: topic
    string(&mut body, topic);
    body.push(3); // the name as it is, not a prefix
    string(&mut body, &format!("User:{user}"));
    string(&mut body, "*"); // from any host
    body.push(4); // operation: write, and with it describe
    body.push(acl.permission);
    let answer = call(bootstrap, acl.api, ACLS_VERSION, &body)?;
    // throttle time, number of entries; then the code and a text
    match answer.get(4 + 4..).and_then(|rest| rest.first_chunk()) {
        Some([0, 0]) => Ok(()),
        code => Err(format!("kafka did not change the rights on topic {topic}: {code:?}").into()),
    }
}

/// Sends one request on a connection of its own and returns the body of the answer.
fn call(bootstrap: &str, api: i16, version: i16, body: &[u8]) -> Result<Vec<u8>> {
    let mut request = Vec::new();
    request.extend(api.to_be_bytes());
    request.extend(version.to_be_bytes());
    request.extend(1_i32.to_be_bytes()); // correlation
    string(&mut request, "xtask");
    request.extend(body);

    let address = bootstrap.parse().map_err(|_| format!("{bootstrap} is not an address"))?;
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(&i32::try_from(request.len())?.to_be_bytes())?;
    stream.write_all(&request)?;

    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = vec![0; usize::try_from(i32::from_be_bytes(length))?];
    stream.read_exact(&mut answer)?;
    Ok(answer.split_off(4.min(answer.len()))) // without the correlation
}

fn string(to: &mut Vec<u8>, text: &str) {
    let length = i16::try_from(text.len()).expect("names are short");
    to.extend(length.to_be_bytes());
    to.extend(text.as_bytes());
}
