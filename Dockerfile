# A coordinator. Peers are tabs and computers elsewhere; this image computes nothing and needs no GPU.
FROM node:22-bookworm-slim

WORKDIR /shoal
COPY package.json package-lock.json ./
ENV PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD=1
RUN npm ci --no-audit --no-fund

COPY . .
# The pages are built once, here, so that the container starts without writing into its image.
RUN node --input-type=module -e "import { install } from './coordinator/cli/install.mjs'; await install({ browser: false, vulkan: false, pages: true })" \
  && mkdir /runs && chown node:node /runs

USER node
# The image may be read-only; Deno's own notes are of no worth to the next start.
ENV DENO_DIR=/tmp/deno
VOLUME /runs
EXPOSE 8080
# A stop asks for a clean end: the run's log is synced at every commit anyway.
STOPSIGNAL SIGTERM
ENTRYPOINT ["node", "shoal.mjs"]
CMD ["coordinator", "--host", "0.0.0.0", "--port", "8080", "--out_dir", "/runs/run", "--or_resume"]
