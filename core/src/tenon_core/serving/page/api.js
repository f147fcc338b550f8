// Calls of the server: JSON, and streams of server-sent events. It knows nothing of the page.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Api {
  /** key: () => the API key, or "" */
  constructor(key) {
    this.key = key;
  }

  async get(path, signal) {
    const answer = await this.send(path, { signal });
    return answer.json();
  }

  /** The events of a stream, parsed, until the server says that it is done. */
  async *stream(path, body, signal) {
    const headers = { "content-type": "application/json" };
    const answer = await this.send(path, { method: "POST", headers, body: JSON.stringify(body), signal });
    for await (const data of events(answer.body)) {
      if (data === "[DONE]") return;
      const value = JSON.parse(data);
      if (value.error) throw new ApiError(answer.status, String(value.error.message));
      yield value;
    }
    throw new ApiError(answer.status, "the stream broke off");
  }

  async send(path, options) {
    const headers = { ...options.headers };
    const key = this.key();
    if (key) headers.authorization = `Bearer ${key}`;
    const answer = await fetch(path, { ...options, headers, credentials: "omit", cache: "no-store" });
    if (!answer.ok) throw new ApiError(answer.status, await messageOf(answer));
    return answer;
  }
}

async function messageOf(answer) {
  try {
    return String((await answer.json()).error.message);
  } catch {
    return `the server answered ${answer.status}`;
  }
}

/** The data of each server-sent event, however the bytes are cut. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) yield line.slice(5).trim();
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
