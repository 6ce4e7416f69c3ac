// BullMQ as a process of its own: fills its queue, or works it off; see rival.py for the manner.
//
//   node bullmq_rival.js HOME SOCKET fill|work COUNT
//
// HOME is the folder that npm has installed into.
'use strict'

const [home, socket, verb, count] = process.argv.slice(2)
const { createRequire } = require('node:module')
const { writeSync } = require('node:fs')
const { Queue, Worker } = createRequire(`${home}/package.json`)('bullmq')

const CONCURRENT = 100
const BULK = 1000
const connection = { path: socket, maxRetriesPerRequest: null }
const options = { removeOnComplete: true }

function say() {
  const { user, system } = process.cpuUsage()
  const told = { at: Number(process.hrtime.bigint()) / 1e9, cpu_seconds: (user + system) / 1e6 }
  writeSync(1, JSON.stringify({ ...told, delays_ms: [] }) + '\n')
}

async function fill() {
  const queue = new Queue('bench', { connection })
  for (let left = Number(count); left > 0; left -= BULK) {
    const jobs = Array.from({ length: Math.min(left, BULK) }, () => ({ name: 'job', data: {}, opts: options }))
    await queue.addBulk(jobs)
  }
  await queue.close()
}

function work() {
  let done = 0
  const job = async () => {
    done += 1
    if (done === 1) say()
    if (done === Number(count)) {
      say()
      process.exit(0)
    }
  }
  new Worker('bench', job, { connection, concurrency: CONCURRENT })
}

if (verb === 'fill') fill()
else work()
