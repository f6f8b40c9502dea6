"""The internet host of tests and demo, on IPv4 and IPv6: HTTP on port 80, UDP echo on 7, DNS on 53.

HTTP: / is a page, /address returns the client's address, /bytes/N returns N pseudo-random bytes, always the same.
Echo: returns a datagram unchanged. "who" is answered with the sender's address and port.
DNS: names below internet.test and www.example.org have this host's addresses. exit.test and exit.example.net have the
exit's. No other name exists.
Arguments, all optional: the IPv4 address, the IPv6 address, and a domain below test to use instead of internet.
"""

import http.server
import ipaddress
import random
import socket
import socketserver
import struct
import sys
import threading

PAGE = b"<!doctype html><title>The internet</title><p>You have reached it.\n"
IPV4 = socket.inet_pton(socket.AF_INET, sys.argv[1] if len(sys.argv) > 1 else "203.0.113.2")
IPV6 = socket.inet_pton(socket.AF_INET6, sys.argv[2] if len(sys.argv) > 2 else "2001:db8:3::2")
DOMAIN = sys.argv[3].encode() if len(sys.argv) > 3 else b"internet"
EXIT = {1: socket.inet_pton(socket.AF_INET, "198.51.100.2"), 28: socket.inet_pton(socket.AF_INET6, "2001:db8:2::2")}
EXIT_NAMES = [b"exit", b"test"], [b"exit", b"example", b"net"]
WWW = [b"www", b"example", b"org"]


def plain(address):
    """The address without the IPv4-mapped form of a dual-stack socket."""
    parsed = ipaddress.ip_address(address.split("%")[0])
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


class Dual:
    """Listens on both IP versions with one socket."""

    address_family = socket.AF_INET6
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class Http(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/":
            body = PAGE
        elif self.path == "/address":
            body = plain(self.client_address[0]).encode() + b"\n"
        elif self.path.startswith("/bytes/"):
            body = random.Random(0).randbytes(int(self.path.removeprefix("/bytes/")))
        else:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class HttpServer(Dual, http.server.ThreadingHTTPServer):
    def server_bind(self):
        Dual.server_bind(self)


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        data, reply = self.request
        if data == b"who":
            data = f"{plain(self.client_address[0])} {self.client_address[1]}".encode()
        reply.sendto(data, self.client_address)


class Dns(socketserver.BaseRequestHandler):
    def handle(self):
        query, reply = self.request
        reply.sendto(answer_to(query), self.client_address)


class DnsByTcp(socketserver.StreamRequestHandler):
    def handle(self):
        while length := self.rfile.read(2):
            answer = answer_to(self.rfile.read(struct.unpack("!H", length)[0]))
            self.wfile.write(struct.pack("!H", len(answer)) + answer)


def answer_to(query):
    end, labels = 12, []
    while query[end]:
        labels.append(query[end + 1 : end + 1 + query[end]].lower())
        end += 1 + query[end]
    end += 5
    kind = struct.unpack("!H", query[end - 4 : end - 2])[0]
    own = {1: IPV4, 28: IPV6} if labels[-2:] == [DOMAIN, b"test"] or labels == WWW else {}
    addresses = EXIT if labels in EXIT_NAMES else own
    known, address = bool(addresses), addresses.get(kind)
    flags = 0x8580 if known else 0x8583
    answer = struct.pack("!2sHHHHH", query[:2], flags, 1, int(address is not None), 0, 0) + query[12:end]
    if address is not None:
        answer += struct.pack("!HHHIH", 0xC00C, kind, 1, 60, len(address)) + address
    return answer


class TcpServer(Dual, socketserver.ThreadingTCPServer):
    pass


class UdpServer(Dual, socketserver.UDPServer):
    max_packet_size = 65_535


def main():
    for server in [HttpServer(("::", 80), Http), UdpServer(("::", 7), Echo), UdpServer(("::", 53), Dns), TcpServer(("::", 53), DnsByTcp)]:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready")
    threading.Event().wait()


main()
