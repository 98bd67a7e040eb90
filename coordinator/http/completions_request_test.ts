// What a client may ask for: every field with its bounds, neutral values of fields that are missing here, and refusals that
// name the field.
import assert from "node:assert/strict";
import fc from "fast-check";
import {
  type Completion,
  isProblem,
  liveProblem,
  readCompletion,
  TOKENS_MAX,
} from "./completions_request.ts";

const SEED = 77;

function accepted(body: unknown): Completion {
  const result = readCompletion(body, SEED);
  assert.ok(!isProblem(result), JSON.stringify(result));
  return result;
}

Deno.test("completions: defaults are OpenAI's, and the seed is drawn by the server", () => {
  assert.deepEqual(accepted({ prompt: "a" }), {
    requests: [{ prompt: "a", stop: [], count: 16, temperature: 1, topP: 1, topK: 0, seed: SEED }],
    ...{ model: null, n: 1, logprobs: null, stream: false, live: false, includeUsage: false },
  });
});

Deno.test("completions: every field arrives", () => {
  const body = {
    ...{ model: "m", prompt: ["a b"], max_tokens: 9, temperature: 0, top_p: 0.5, top_k: 3, seed: 5 },
    ...{ stop: ["x", "y"], stream: true, stream_options: { include_usage: true }, echo: true, user: "u" },
    ...{ live: true, ignore_eos: true, logprobs: 2 },
  };
  const requests = [{
    ...{
      prompt: "a b",
      stop: ["x", "y"],
      ignoreEos: true,
      echo: true,
      logprobs: 2,
      count: 9,
      temperature: 0,
      topP: 0.5,
      topK: 3,
      seed: 5,
    },
  }];
  assert.deepEqual(accepted(body), {
    requests,
    ...{ model: "m", n: 1, logprobs: 2, stream: true, live: true, includeUsage: true },
  });
  assert.deepEqual(accepted({ prompt: [1, 2], stop: "z" }).requests[0]!.prompt, [1, 2]);
  assert.deepEqual(accepted({ prompt: [[3]], stop: "z" }).requests[0]!.stop, ["z"]);
  assert.deepEqual(accepted({ prompt: [[3]] }).requests[0]!.prompt, [3]);
});

Deno.test("completions: several texts in several ways are that many choices, with seeds that follow one another", () => {
  const { requests, n } = accepted({ prompt: ["a", [1, 2]], n: 2, seed: 0xffff_ffff });
  const shown = requests.map(({ prompt, seed }) => [prompt, seed]);
  assert.deepEqual(shown, [["a", 0xffff_ffff], ["a", 0], [[1, 2], 0xffff_ffff], [[1, 2], 0]]);
  assert.equal(n, 2);
  const most = Array(8).fill("a");
  assert.equal(accepted({ prompt: most, n: 4, max_tokens: 1024 }).requests.length, 32);
});

Deno.test("completions: a text is measured without writing, but not by the computers of a run", () => {
  const measured = accepted({ prompt: "a", echo: true, max_tokens: 0, logprobs: 0 });
  assert.deepEqual([measured.requests[0]!.count, measured.logprobs], [0, 0]);
  assert.equal(liveProblem(accepted({ prompt: "a" })), null);
  assert.equal(liveProblem(measured)?.param, "logprobs");
  assert.equal(liveProblem(accepted({ prompt: "a", echo: true, max_tokens: 0 }))?.param, "max_tokens");
});

Deno.test("completions: fields that ask for nothing are no reason to refuse", () => {
  const neutral = {
    ...{ n: 1, best_of: 1, logprobs: null, presence_penalty: 0, frequency_penalty: 0, suffix: null },
    ...{
      logit_bias: {},
      stop: null,
      ignore_eos: false,
      seed: null,
      stream: null,
      echo: null,
      stream_options: null,
      top_p: null,
    },
  };
  accepted({ prompt: "a", ...neutral });
});

Deno.test("completions: what does not fit is refused by name, with the value and what fits", () => {
  const cases: [Record<string, unknown>, string, RegExp][] = [
    [{ prompt: "" }, "prompt", /at least one character/],
    [{ prompt: undefined }, "prompt", /prompt is missing/],
    [{ prompt: {} }, "prompt", /prompt is {}/],
    [{ prompt: [] }, "prompt", /prompt is \[\]/],
    [{ prompt: [1.5, 2] }, "prompt", /tokens/],
    [{ prompt: ["a", ""] }, "prompt", /at least one character/],
    [{ prompt: ["a", 7] }, "prompt", /tokens/],
    [{ prompt: Array(9).fill("a") }, "prompt", /9 texts; send at most 8/],
    [{ prompt: Array(8).fill("a"), n: 4, max_tokens: 1025 }, "max_tokens", /32 texts may have 1024 each/],
    [{ max_tokens: 0 }, "max_tokens", /max_tokens is 0; use an integer from 1 to 8192/],
    [{ max_tokens: TOKENS_MAX + 1 }, "max_tokens", /8193/],
    [{ max_tokens: "9" }, "max_tokens", /"9"/],
    [{ temperature: -1 }, "temperature", /a number from 0 to 100/],
    [{ top_p: 0 }, "top_p", /above 0 and up to 1/],
    [{ top_k: 1.5 }, "top_k", /1.5/],
    [{ seed: 2 ** 32 }, "seed", /4294967296/],
    [{ stop: ["a", "b", "c", "d", "e"] }, "stop", /up to 4 texts/],
    [{ stop: "" }, "stop", /1 to 1000/],
    [{ stop: 7 }, "stop", /stop is 7/],
    [{ n: 5 }, "n", /n is 5; use an integer from 1 to 4/],
    [{ best_of: 2 }, "best_of", /best_of is 2; this server does not have it, leave it out or use 1/],
    [{ live: 1 }, "live", /true or false/],
    [{ ignore_eos: 1 }, "ignore_eos", /ignore_eos is 1; use true or false/],
    [{ logprobs: 6 }, "logprobs", /logprobs is 6; use an integer from 0 to 5/],
    [{ logprobs: true }, "logprobs", /logprobs is true/],
    [{ presence_penalty: 0.5 }, "presence_penalty", /0.5/],
    [{ logit_bias: { "50256": -100 } }, "logit_bias", /leave it out/],
    [{ stream: "yes" }, "stream", /true or false/],
    [{ stream_options: { include_usage: 1 } }, "stream_options", /include_usage/],
    [{ model: 7 }, "model", /not a name/],
    [{ temprature: 1 }, "temprature", /"temprature" is not known/],
  ];
  for (const [body, param, pattern] of cases) {
    const result = readCompletion({ prompt: "a", ...body }, SEED);
    assert.ok(isProblem(result), JSON.stringify(body));
    assert.equal(result.param, param);
    assert.match(result.message, pattern);
  }
  for (const body of [undefined, null, [], "a", 7]) assert.ok(isProblem(readCompletion(body, SEED)));
});

Deno.test("completions: whatever JSON comes, the answer is bounded or a refusal", () => {
  const keys = fc.constantFrom(
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "stream",
    "n",
  );
  fc.assert(
    fc.property(fc.dictionary(keys, fc.jsonValue()), (body) => {
      const result = readCompletion(body, SEED);
      if (isProblem(result)) return assert.ok(result.message.length < 300);
      assert.ok(result.requests.length >= 1 && result.requests.length <= 32);
      const { count, temperature, topP, topK, stop, prompt } = result.requests[0]!;
      assert.ok(count >= 1 && count <= TOKENS_MAX && temperature >= 0 && topP > 0 && topP <= 1 && topK >= 0);
      assert.ok(stop.length <= 4 && prompt.length > 0);
    }),
    { seed: 20262, numRuns: 2000 },
  );
});
