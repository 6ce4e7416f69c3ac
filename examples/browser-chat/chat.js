// A chat room on a Waystation channel: one EventSource to listen, one fetch to speak.
//
// Nothing is lost and nothing comes twice, whatever restarts: a message has an id of its own, so it
// may be sent again until it is acknowledged, and the stream goes on after the last one seen.

const options = new URLSearchParams(location.search);
const station = options.get("station") ?? "http://localhost:7070";
const room = options.get("room") ?? "lobby";
const token = options.get("token"); // a key or a JSON Web Token, where the station asks for one

const RETRY_MS = 1000;
const KEPT = 500;

const page = Object.fromEntries(
  ["room", "state", "messages", "composer", "name", "text"].map((id) => [id, document.getElementById(id)]),
);

// What a reload of the page must not forget: who we are, where we are, what was said, and what we
// said that has not come back yet.
const memory = JSON.parse(sessionStorage.getItem(room) ?? "null") ?? {
  subscriber: `page-${crypto.randomUUID()}`,
  lastEventId: "",
  said: [],
  mine: [],
  unsent: {},
};
const remember = () => sessionStorage.setItem(room, JSON.stringify(memory));
const shown = new Map();

function listen() {
  const address = new URL(`${station}/v1/channels/${room}/subscribers/${memory.subscriber}/events`);
  address.searchParams.set("create", "true");
  if (memory.lastEventId) address.searchParams.set("lastEventId", memory.lastEventId);
  if (token) address.searchParams.set("access_token", token);

  const source = new EventSource(address);
  source.onopen = () => showState("online");
  source.onmessage = ({ data, lastEventId }) => {
    const { messageID, content } = JSON.parse(data);
    memory.lastEventId = lastEventId;
    memory.said = [...memory.said, { messageID, ...content }].slice(-KEPT);
    delete memory.unsent[messageID];
    remember();
    show(messageID, content);
  };
  source.onerror = () => {
    showState("reconnecting");
    // It comes back by itself after a lost connection. After an error status it does not.
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, RETRY_MS);
  };
}

async function speak(messageID, content) {
  const address = `${station}/channel/${room}/message/${messageID}`;
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  for (;;) {
    try {
      const reply = await fetch(address, { method: "PUT", headers, body: JSON.stringify(content) });
      if (reply.ok) return;
      if (reply.status < 500) return showState("refused");
    } catch {
      // The station is away. The id makes it safe to say it again.
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

function show(messageID, { name, text, at }, { sending = false } = {}) {
  const mine = memory.mine.includes(messageID);
  const known = shown.get(messageID);
  if (known) {
    // Ours, as it comes back: only now everyone has it, and only now it has its place.
    if (!known.classList.contains("sending")) return;
    known.remove();
  }
  const time = new Date(at).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const item = document.createElement("li");
  item.dataset.id = messageID;
  item.dataset.name = name;
  item.className = [mine && "mine", sending && "sending"].filter(Boolean).join(" ");
  item.style.setProperty("--hue", hue(name));
  const [line, who, words] = ["small", "b", "p"].map((tag) => document.createElement(tag));
  who.textContent = name;
  words.textContent = text;
  line.append(who, ` ${time}`);
  item.append(line, words);
  shown.set(messageID, item);

  const firstSending = page.messages.querySelector(".sending");
  page.messages.insertBefore(item, sending ? null : firstSending);
  for (const each of page.messages.children) {
    each.classList.toggle("more", each.previousElementSibling?.dataset.name === each.dataset.name);
  }
  page.messages.scrollTop = page.messages.scrollHeight;
}

function showState(state) {
  page.state.textContent = state;
  page.state.className = state;
}

function hue(name) {
  return [...name].reduce((sum, letter) => (sum * 31 + letter.codePointAt(0)) % 360, 7);
}

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const messageID = crypto.randomUUID();
  const content = { name: page.name.value, text: page.text.value, at: Date.now() };
  memory.mine = [...memory.mine, messageID].slice(-KEPT);
  memory.unsent[messageID] = content;
  remember();
  page.text.value = "";
  show(messageID, content, { sending: true });
  speak(messageID, content);
});

page.room.textContent = room;
document.title = `#${room} · Waystation`;
page.name.value = options.get("name") ?? `guest-${memory.subscriber.slice(5, 8)}`;
for (const { messageID, ...content } of memory.said) show(messageID, content);
for (const [messageID, content] of Object.entries(memory.unsent)) {
  show(messageID, content, { sending: true });
  speak(messageID, content);
}
listen();
