//! Drives RocketMQ 5's own Rust client, unmodified: reads a step per line as JSON from its standard
//! input, answers each with a line. The steps are those of python5/driver.py. This client has no
//! push consumer, so `listen` is a loop over its simple consumer, and `again` tells what came after
//! it was acknowledged. It changes no invisible time, recalls no message, and tells no offset of
//! what it sent.

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{stdin, AsyncBufReadExt, BufReader};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const INVISIBLE_S: u64 = 10; // the least that proxies take
const BATCH: i32 = 32;
const PAUSE: Duration = Duration::from_millis(100); // after a call that failed

type Answer = Result<Value, Box<dyn Error>>;

/// What the loops that listen were given.
#[derive(Default)]
struct Heard {
    found: Vec<Value>,
    acknowledged: HashSet<String>,
    again: Vec<String>, // deliveries of what was acknowledged before
    failed: HashSet<String>,
}

/// A series of numbers that are sent one after the other.
struct Load {
    sent: Arc<Mutex<Vec<u64>>>,
    failed: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

struct Driver {
    options: ClientOption,
    producer: Option<Arc<Producer>>,
    simple: Option<(SimpleConsumer, String, String)>, // with its topic and tag
    held: HashMap<String, MessageView>,
    heard: Arc<Mutex<Heard>>,
    asked: Arc<Mutex<Vec<String>>>,
    load: Option<Load>,
}

fn text<'a>(step: &'a Value, name: &str, otherwise: &'a str) -> &'a str {
    step[name].as_str().unwrap_or(otherwise)
}

fn body(view: &MessageView) -> String {
    String::from_utf8_lossy(view.body()).into_owned()
}

fn message(step: &Value) -> Result<impl Message, ClientError> {
    let mut made = MessageBuilder::builder()
        .set_topic(text(step, "topic", ""))
        .set_body(text(step, "body", "").as_bytes().to_vec())
        .set_properties(HashMap::from([("from", "sdk")]));
    if let Some(tag) = step["tag"].as_str() {
        made = made.set_tag(tag);
    }
    if let Some(key) = step["key"].as_str() {
        made = made.set_keys(vec![key]);
    }
    if let Some(group) = step["group"].as_str() {
        made = made.set_message_group(group);
    }
    if let Some(delay_s) = step["delay_s"].as_f64() {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        made = made.set_delivery_timestamp((now.as_secs_f64() + delay_s).ceil() as i64);
    }
    if step["end"].is_string() {
        made = made.enable_transaction();
    }
    made.build()
}

impl Driver {
    fn producer(&self) -> Result<Arc<Producer>, Box<dyn Error>> {
        Ok(self.producer.clone().ok_or("there is no producer")?)
    }

    async fn produce(&mut self, step: &Value) -> Answer {
        let mut options = ProducerOption::default();
        let topics = step["topics"].as_array().cloned().unwrap_or_default();
        options.set_topics(topics.iter().filter_map(Value::as_str).collect());
        let asked = self.asked.clone();
        let checker = move |_: String, view: MessageView| {
            asked.lock().unwrap().push(body(&view));
            TransactionResolution::COMMIT
        };
        let client = self.options.clone();
        let mut made = Producer::new_transaction_producer(options, client, Box::new(checker))?;
        made.start().await?;
        self.producer = Some(Arc::new(made));
        Ok(Value::Null)
    }

    async fn send(&self, step: &Value) -> Answer {
        let receipt = self.producer()?.send(message(step)?).await?;
        Ok(json!([receipt.message_id(), null, ""]))
    }

    async fn transact(&self, step: &Value) -> Answer {
        let producer = self.producer()?;
        let transaction = producer.send_transaction_message(message(step)?).await?;
        match text(step, "end", "") {
            "commit" => transaction.commit().await?,
            "rollback" => transaction.rollback().await?,
            _ => (),
        }
        Ok(Value::Null)
    }

    fn begin_load(&mut self, step: &Value) -> Answer {
        let (producer, topic) = (self.producer()?, step["topic"].clone());
        let sent = Arc::<Mutex<Vec<u64>>>::default();
        let failed = Arc::<Mutex<Vec<String>>>::default();
        let stop = Arc::<AtomicBool>::default();
        let (to_sent, to_failed, stopped) = (sent.clone(), failed.clone(), stop.clone());
        let task = tokio::spawn(async move {
            for number in 0u64.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let one = message(&json!({"topic": topic, "body": number.to_string()}));
                match producer.send(one.expect("a whole message")).await {
                    Ok(_) => to_sent.lock().unwrap().push(number),
                    Err(error) => {
                        to_failed.lock().unwrap().push(error.to_string());
                        sleep(PAUSE).await; // it sends once, and fails at once without a proxy
                    }
                }
            }
        });
        self.load = Some(Load {
            sent,
            failed,
            stop,
            task,
        });
        Ok(Value::Null)
    }

    fn load_size(&self) -> Answer {
        let load = self.load.as_ref().ok_or("there is no load")?;
        let size = load.sent.lock().unwrap().len();
        Ok(json!(size))
    }

    async fn end_load(&mut self) -> Answer {
        let load = self.load.take().ok_or("there is no load")?;
        load.stop.store(true, Ordering::Relaxed);
        load.task.await?;
        let (sent, failed) = (load.sent.lock().unwrap(), load.failed.lock().unwrap());
        Ok(json!([*sent, *failed]))
    }

    async fn consumer(&self, step: &Value) -> Result<SimpleConsumer, ClientError> {
        let mut options = SimpleConsumerOption::default();
        options.set_consumer_group(text(step, "group", ""));
        options.set_topics(vec![text(step, "topic", "")]);
        let mut made = SimpleConsumer::new(options, self.options.clone())?;
        made.start().await?;
        Ok(made)
    }

    async fn subscribe(&mut self, step: &Value) -> Answer {
        let made = self.consumer(step).await?;
        self.simple = Some((
            made,
            text(step, "topic", "").into(),
            text(step, "tag", "*").into(),
        ));
        Ok(Value::Null)
    }

    async fn receive(&mut self) -> Answer {
        let (simple, topic, tag) = self.simple.as_ref().ok_or("there is no consumer")?;
        let mut found = Vec::new();
        for view in receive(simple, topic, tag).await? {
            let tag = view.tag().unwrap_or("");
            found.push(json!([
                view.message_id(),
                body(&view),
                tag,
                view.properties()
            ]));
            self.held.insert(view.message_id().into(), view);
        }
        Ok(json!(found))
    }

    async fn ack(&mut self, step: &Value) -> Answer {
        let (simple, _, _) = self.simple.as_ref().ok_or("there is no consumer")?;
        let view = self
            .held
            .remove(text(step, "message_id", ""))
            .ok_or("it is not held")?;
        simple.ack(&view).await?;
        Ok(Value::Null)
    }

    async fn listen(&self, step: &Value) -> Answer {
        let made = self.consumer(step).await?;
        let (topic, tag) = (
            text(step, "topic", "").to_string(),
            text(step, "tag", "*").to_string(),
        );
        tokio::spawn(listen(made, topic, tag, self.heard.clone()));
        Ok(Value::Null)
    }

    async fn stop(&mut self) -> Answer {
        if let Some((simple, _, _)) = self.simple.take() {
            simple.shutdown().await?;
        }
        if let Some(producer) = self.producer.take().and_then(Arc::into_inner) {
            producer.shutdown().await?;
        }
        Ok(Value::Null)
    }

    async fn act(&mut self, name: &str, step: &Value) -> Answer {
        match name {
            "produce" => self.produce(step).await,
            "send" => self.send(step).await,
            "transact" => self.transact(step).await,
            "checked" => Ok(json!(*self.asked.lock().unwrap())),
            "begin_load" => self.begin_load(step),
            "load_size" => self.load_size(),
            "end_load" => self.end_load().await,
            "subscribe" => self.subscribe(step).await,
            "receive" => self.receive().await,
            "ack" => self.ack(step).await,
            "listen" => self.listen(step).await,
            "heard" => Ok(json!(self.heard.lock().unwrap().found)),
            "again" => Ok(json!(self.heard.lock().unwrap().again)),
            "stop" => self.stop().await,
            _ => Err(format!("no step {name}").into()),
        }
    }
}

async fn receive(
    consumer: &SimpleConsumer,
    topic: &str,
    tag: &str,
) -> Result<Vec<MessageView>, ClientError> {
    let expression = FilterExpression::new(FilterType::Tag, tag);
    let invisible = Duration::from_secs(INVISIBLE_S);
    consumer
        .receive_with(topic, &expression, BATCH, invisible)
        .await
}

/// Receive and acknowledge for ever; a body "fail..." is acknowledged the second time only.
async fn listen(consumer: SimpleConsumer, topic: String, tag: String, heard: Arc<Mutex<Heard>>) {
    loop {
        let views = match receive(&consumer, &topic, &tag).await {
            Ok(views) => views,
            Err(error) => {
                eprintln!("receive: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        for view in views {
            let (text, id) = (body(&view), view.message_id().to_string());
            {
                let mut heard = heard.lock().unwrap();
                heard.found.push(json!([text, view.delivery_attempt(), id]));
                if heard.acknowledged.contains(&id) {
                    heard.again.push(text.clone());
                }
                if text.starts_with("fail") && heard.failed.insert(text) {
                    continue;
                }
            }
            match consumer.ack(&view).await {
                Ok(()) => drop(heard.lock().unwrap().acknowledged.insert(id)),
                Err(error) => eprintln!("ack: {error}"), // it comes again
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut options = ClientOption::default();
    options.set_access_url(arguments[0].replace(';', ","));
    options.set_timeout(Duration::from_secs(10));
    if !arguments[1].is_empty() {
        options.set_access_key(&arguments[1]);
        options.set_secret_key(&arguments[2]);
    }
    let mut driver = Driver {
        options,
        producer: None,
        simple: None,
        held: HashMap::new(),
        heard: Arc::default(),
        asked: Arc::default(),
        load: None,
    };
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let asked: Value = serde_json::from_str(&line)?;
        let name = asked[0].as_str().unwrap_or("");
        match driver.act(name, &asked[1]).await {
            Ok(value) => println!("{}", json!({ "value": value })),
            Err(error) => println!("{}", json!({ "error": error.to_string() })),
        }
        if name == "stop" {
            break;
        }
    }
    std::process::exit(0) // the loops that listen go on for ever
}
