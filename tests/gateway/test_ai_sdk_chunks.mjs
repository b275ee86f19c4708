// Reads streams of chunks with the client's own parser, schema and assembly. One line per stream.
import { readFileSync } from "node:fs";
import { DefaultChatTransport, readUIMessageStream } from "ai";

const streams = JSON.parse(readFileSync(JSON.parse(process.argv[2])));
let at = 0;
const transport = new DefaultChatTransport({
  api: "http://in.process/chat",
  fetch: async () => new Response(streams[at].map((each) => `data: ${each}\n\n`).join("") + "data: [DONE]\n\n"),
});

for (at = 0; at < streams.length; at += 1) {
  let illegal = null;
  let last = null;
  try {
    const stream = await transport.sendMessages({ chatId: "c", messages: [], trigger: "submit-message" });
    const own = streams[at].map((each) => JSON.parse(each)).find((each) => each.type === "error");
    const read = readUIMessageStream({ stream, terminateOnError: false, onError: (error) => {
      if (!own || String(error.message ?? error) !== own.errorText) illegal = String(error?.stack ?? error);
    } });
    for await (const message of read) last = message;
  } catch (error) {
    illegal = String(error?.stack ?? error);
  }
  const texts = (last?.parts ?? []).filter((each) => each.type === "text").map((each) => each.text);
  console.log(JSON.stringify({ illegal, texts, id: last?.id }));
}
