//! Region, endpoint and credentials from the SDK's own chain. A test runs itself once more, in an environment of its own.

#![allow(clippy::unwrap_used)] // A test.

mod support;

use std::process::Stdio;

use outbox_core::Publisher;
use outbox_sqs::{SqsConfig, SqsPublisher};
use support::stub::Stub;
use support::{numbered, publish, sdk, words};

const ENVIRONMENT: &[(&str, &str)] = &[
    ("AWS_REGION", "eu-central-1"),
    ("AWS_ACCESS_KEY_ID", "FROM-ENVIRONMENT"),
    ("AWS_SECRET_ACCESS_KEY", "s"),
];

/// Credentials of a role that is assumed with those of another profile.
const PROFILE: &str = "
[default]
region = eu-central-1
role_arn = arn:aws:iam::123456789012:role/relay
source_profile = base

[profile base]
aws_access_key_id = FROM-PROFILE
aws_secret_access_key = s
";

#[tokio::test]
async fn environment_variables_are_enough() {
    if is_child() {
        return send_one().await;
    }
    let stub = stub().await;
    run_again("environment_variables_are_enough", &stub, ENVIRONMENT).await;
    assert_eq!(stub.stored("q.fifo").len(), 1);
    let keys = stub.access_keys();
    assert!(keys.iter().all(|key| key == "FROM-ENVIRONMENT"), "{keys:?}");
}

#[tokio::test]
async fn a_role_is_assumed_by_the_profile() {
    if is_child() {
        return send_one().await;
    }
    let stub = stub().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, PROFILE).unwrap();
    let file = ("AWS_CONFIG_FILE", file.to_str().unwrap());
    run_again("a_role_is_assumed_by_the_profile", &stub, &[file]).await;
    assert_eq!(stub.stored("q.fifo").len(), 1);
    let keys = stub.access_keys();
    assert_eq!((&*keys[0], &*keys[1]), ("FROM-PROFILE", "ASSUMED"), "{keys:?}");
}

/// As in a pod whose service account has a role.
#[tokio::test]
async fn a_role_is_assumed_by_a_web_identity() {
    if is_child() {
        return send_one().await;
    }
    let stub = stub().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "token").unwrap();
    let variables = [
        ("AWS_REGION", "eu-central-1"),
        ("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/relay"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", file.to_str().unwrap()),
    ];
    run_again("a_role_is_assumed_by_a_web_identity", &stub, &variables).await;
    assert_eq!(stub.stored("q.fifo").len(), 1);
    assert_eq!(stub.actions()[0], "AssumeRoleWithWebIdentity");
    let keys = stub.access_keys();
    assert!(keys[1..].iter().all(|key| key == "ASSUMED"), "{keys:?}");
}

#[test]
fn a_missing_region_is_named() {
    let sdk = outbox_sqs::SdkConfig::builder().build();
    let error = SqsPublisher::new(&sdk, &SqsConfig::new()).unwrap_err().to_string();
    assert!(error.contains("AWS_REGION"), "{error}");
}

/// H163
#[tokio::test]
async fn secrets_are_not_in_debug() {
    let credentials =
        aws_sdk_sqs::config::Credentials::new("key", "hush", Some("hush".into()), None, "tests");
    let sdk = sdk("http://127.0.0.1:9")
        .into_builder()
        .credentials_provider(aws_sdk_sqs::config::SharedCredentialsProvider::new(credentials));
    let publisher = SqsPublisher::new(&sdk.build(), &SqsConfig::new()).unwrap();
    let debug = format!("{publisher:?}");
    assert!(!debug.contains("hush"), "{debug}");
}

async fn stub() -> Stub {
    let stub = Stub::start().await;
    stub.create("q.fifo");
    stub
}

const CHILD: &str = "OUTBOX_SQS_TEST_CHILD";

fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

async fn send_one() {
    let publisher = SqsPublisher::load(&SqsConfig::new()).await.unwrap();
    publisher.check().await.unwrap();
    let verdicts = publish(&publisher, numbered("q.fifo", ["a"])).await;
    assert_eq!(words(&verdicts), ["ok"], "{verdicts:?}");
}

/// Runs this test in a process with these variables and no others.
async fn run_again(test: &str, stub: &Stub, variables: &[(&str, &str)]) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env_clear().stdin(Stdio::null());
    command.env(CHILD, "1").env("AWS_ENDPOINT_URL", stub.endpoint());
    command.envs(variables.iter().copied());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
}
